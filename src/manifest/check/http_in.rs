//! HttpIn manifests: addresses, paths, who may send, and what entrances must not want twice.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::Check;
use super::draft::Draft;
use super::sinks::is_token;
use crate::manifest::Spec;
use crate::manifest::http_in::{Auth, BODY_BYTES_MAX, HttpIn, Method};
use crate::manifest::problem::{Code, Place, Problem};

/// An entrance whose address is one.
struct Entrance<'d> {
    draft: usize,
    address: SocketAddr,
    spec: &'d HttpIn,
}

impl Check<'_> {
    pub(super) fn check_entrances(&mut self) {
        let mut found = Vec::new();
        let mut entrances = Vec::new();
        for (at, draft) in self.drafts.iter().enumerate() {
            let Some(Spec::HttpIn(spec)) = draft.manifest.as_ref().map(|manifest| &manifest.spec) else { continue };
            let mut report = |problem| found.push((at, problem));
            check_one(draft, spec, &mut report);
            match self.address(draft, spec) {
                Ok(address) => {
                    if !address.ip().is_loopback() && spec.auth.is_none() {
                        report(open_listener(draft, address));
                    }
                    entrances.push(Entrance { draft: at, address, spec });
                }
                Err(problem) => report(*problem),
            }
        }
        self.same_routes(&entrances, &mut found);
        self.ports(&entrances, &mut found);
        self.report_all(found);
    }

    fn address(&self, draft: &Draft, spec: &HttpIn) -> Result<SocketAddr, Box<Problem>> {
        let Some(listen) = &spec.listen else { return Ok(self.world.listen_default) };
        listen.parse().map_err(|_| {
            let message = format!("{listen:?} is not an IP address with a port");
            let problem = Problem::error(Code::InvalidAddress, draft.at("spec.listen"), message);
            Box::new(problem.help("write an address such as `127.0.0.1:8787` or `[::1]:8787`"))
        })
    }

    fn same_routes(&self, entrances: &[Entrance<'_>], found: &mut Vec<(usize, Problem)>) {
        let mut taken: HashMap<(SocketAddr, &str, Method), usize> = HashMap::new();
        for entrance in entrances.iter().filter(|entrance| entrance.address.port() != 0) {
            let mut methods = entrance.spec.methods.clone();
            methods.sort_unstable();
            methods.dedup();
            for method in methods {
                let route = (entrance.address, entrance.spec.path.as_str(), method);
                let Some(first) = taken.insert(route, entrance.draft) else { continue };
                let (draft, other) = (&self.drafts[entrance.draft], &self.drafts[first]);
                let message = format!(
                    "{} {} at {} is taken by {}",
                    method_name(method),
                    entrance.spec.path,
                    entrance.address,
                    other.title()
                );
                let problem = Problem::error(Code::SameRoute, draft.at("spec.path"), message);
                let problem = problem.and(other.at("spec.path"), "here").help("change the path or the method of one");
                found.push((entrance.draft, problem));
                break;
            }
        }
    }

    /// One port, one thing: the same address with the same `tls`, never the API's.
    fn ports(&self, entrances: &[Entrance<'_>], found: &mut Vec<(usize, Problem)>) {
        let mut by_port: HashMap<u16, Vec<&Entrance<'_>>> = HashMap::new();
        for entrance in entrances.iter().filter(|entrance| entrance.address.port() != 0) {
            let draft = &self.drafts[entrance.draft];
            if let Some(api) = self.world.api_address.filter(|api| clash(*api, entrance.address)) {
                let message = format!("{} is the address of the API ({api})", entrance.address);
                let problem = Problem::error(Code::PortTaken, listen_place(draft), message);
                found.push((entrance.draft, problem.help("use another port, or set `VEJAS_HTTP_ADDR`")));
                continue;
            }
            // One entrance per different address and `tls` stands for all that share them.
            let known = by_port.entry(entrance.address.port()).or_default();
            let other = known.iter().find(|other| {
                let same = other.address == entrance.address;
                (same && other.spec.tls != entrance.spec.tls) || (!same && clash(other.address, entrance.address))
            });
            if let Some(other) = other {
                let first = &self.drafts[other.draft];
                let (message, place, first_place) = match other.address == entrance.address {
                    true => (
                        format!("{} has another `tls` at {}", first.title(), other.address),
                        draft.at_key("spec.tls"),
                        first.at_key("spec.tls"),
                    ),
                    false => (
                        format!(
                            "{} already listens at {}, which takes the port {}",
                            first.title(),
                            other.address,
                            other.address.port()
                        ),
                        listen_place(draft),
                        listen_place(first),
                    ),
                };
                let problem = Problem::error(Code::PortTaken, place, message).and(first_place, "here");
                found.push((entrance.draft, problem.help("use another port, or state the same address and `tls`")));
                continue;
            }
            if !known.iter().any(|other| other.address == entrance.address) {
                known.push(entrance);
            }
        }
    }
}

/// Whether two addresses cannot both be listened at by different listeners.
fn clash(left: SocketAddr, right: SocketAddr) -> bool {
    let whole = |address: SocketAddr| address.ip().is_unspecified();
    left.port() == right.port() && (left.ip() == right.ip() || whole(left) || whole(right))
}

fn listen_place(draft: &Draft) -> Place {
    match draft.find("spec.listen") {
        Some(node) => draft.place(node.region),
        None => draft.at_key("spec"),
    }
}

fn open_listener(draft: &Draft, address: SocketAddr) -> Problem {
    let message = format!("{address} is beyond loopback, and the entrance has no `auth`");
    Problem::error(Code::OpenListener, listen_place(draft), message)
        .help("add `auth` (`bearer`, `basic` or `hmac`); when everybody may send, say so: `auth: { none: {} }`")
}

fn check_one(draft: &Draft, spec: &HttpIn, report: &mut impl FnMut(Problem)) {
    if let Err(why) = check_path(&spec.path) {
        let problem = Problem::error(Code::InvalidAddress, draft.at("spec.path"), format!("{:?} {why}", spec.path));
        report(problem.help("write a path such as `/ingest/orders`"));
    }
    if spec.methods.is_empty() {
        report(Problem::error(
            Code::InvalidValue,
            draft.at("spec.methods"),
            "`methods` is empty: nothing could be sent",
        ));
    }
    let bytes = spec.max_body_bytes.0;
    if bytes == 0 || bytes > BODY_BYTES_MAX {
        let message = format!("`maxBodyBytes` is {bytes}, allowed is 1 to {BODY_BYTES_MAX} (64 MiB)");
        report(Problem::error(Code::InvalidValue, draft.at("spec.maxBodyBytes"), message));
    }
    if let Some(Auth::Hmac(hmac)) = &spec.auth
        && !is_token(&hmac.header)
    {
        let message = format!("{:?} is not the name of a header", hmac.header);
        report(Problem::error(Code::InvalidValue, draft.at("spec.auth.hmac.header"), message));
    }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') {
        return Err("does not begin with `/`");
    }
    if path.contains(['?', '#']) {
        return Err("holds a query or a fragment, which is no part of a path");
    }
    match path.chars().all(|c| c.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("holds characters that a path has to write as `%` and two digits"),
    }
}

fn method_name(method: Method) -> &'static str {
    match method {
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
    }
}
