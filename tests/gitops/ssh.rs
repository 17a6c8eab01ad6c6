//! A repository behind SSH: OpenSSH's own server, with keys made for the test.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::repository::{Repository, flow, follower, is_at, until, until_not_synced};
use crate::support::{PATIENCE, free_address};

const PASSPHRASE: &str = "correct horse of the test";
/// `tests/services/sshd` brings it. Without it a test fails; it is never skipped.
const SSHD: &str = "/usr/sbin/sshd";

struct Server {
    folder: tempfile::TempDir,
    address: SocketAddr,
    child: Child,
}

fn make_key(path: &Path, passphrase: &str) -> String {
    let arguments = ["-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-f"];
    let made = Command::new("ssh-keygen").args(arguments).arg(path).status().unwrap();
    assert!(made.success());
    fs::read_to_string(path.with_extension("pub")).unwrap()
}

impl Server {
    /// Lets in whoever has the key `user` in its folder.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        make_key(&at("host"), "");
        fs::write(at("authorized"), make_key(&at("user"), PASSPHRASE)).unwrap();
        let address = free_address();
        let config = format!(
            "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n",
            at("host").display(),
            at("authorized").display(),
        );
        fs::write(at("config"), config).unwrap();
        // Root's server goes back to this folder, which the package's own unit makes at its start.
        let _ = fs::create_dir_all("/run/sshd");
        let log = fs::File::create(at("log")).unwrap();
        let server =
            Command::new(SSHD).args(["-D", "-e", "-f"]).arg(at("config")).stderr(log).stdin(Stdio::null()).spawn();
        let child = server.unwrap_or_else(|error| panic!("{SSHD} ({error}): run tests/services/sshd first"));
        let server = Server { folder, address, child };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(
                Instant::now() < deadline,
                "sshd does not listen: {}",
                fs::read_to_string(server.at("log")).unwrap()
            );
            thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of known hosts in which this server has the key of that name.
    fn known_hosts(&self, key: &str) -> String {
        let public = fs::read_to_string(self.at(key).with_extension("pub")).unwrap();
        let file = self.at(&format!("known-{key}"));
        fs::write(&file, format!("[{}]:{} {public}", self.address.ip(), self.address.port())).unwrap();
        file.display().to_string()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_repository_behind_ssh_is_followed_with_a_key_and_only_from_a_host_that_is_known() {
    let (repository, server) = (Repository::new(), Server::start());
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let user = String::from_utf8(user).unwrap();
    let url = format!("ssh://{}@{}{}/.git", user.trim(), server.address, repository.path().display());
    let mut vejas = follower(&url, "500ms");
    vejas
        .environment("VEJAS_GIT_SSH_KEY", server.at("user").to_str().unwrap())
        .environment("VEJAS_GIT_SSH_PASSPHRASE", PASSPHRASE)
        .environment("VEJAS_GIT_KNOWN_HOSTS", &server.known_hosts("host"));
    vejas.start();
    repository.write("m/flow.yaml", &flow(".v = 2"));
    let commit = repository.commit("second");
    until(&vejas, "the commit over SSH", |found| is_at(found, &commit));
    vejas.stop();
    assert!(!vejas.log().contains(PASSPHRASE), "{}", vejas.log());

    // A host of that name with another key is not given ours.
    vejas.environment("VEJAS_GIT_KNOWN_HOSTS", &server.known_hosts("user"));
    vejas.start();
    let found = until_not_synced(&vejas, "failing", "does not list this key");
    assert_eq!(found["publication"]["no"], 2, "what was published goes on");
    vejas.stop();
    vejas.environment("VEJAS_GIT_KNOWN_HOSTS", &server.known_hosts("host"));

    make_key(&server.at("stranger"), "");
    vejas.environment("VEJAS_GIT_SSH_KEY", server.at("stranger").to_str().unwrap());
    vejas.start();
    until_not_synced(&vejas, "failing", "refuses the credentials");
    vejas.stop();

    vejas.environment("VEJAS_GIT_SSH_KEY", server.at("user").to_str().unwrap());
    vejas.environment("VEJAS_GIT_SSH_PASSPHRASE", "a wrong one");
    vejas.start();
    until_not_synced(&vejas, "failing", "VEJAS_GIT_SSH_PASSPHRASE");
}
