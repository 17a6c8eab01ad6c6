//! The binary: everything is in the library.

use std::process::ExitCode;

// A flow allocates for every message on one thread and frees on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vejas::cli::main().into()
}
