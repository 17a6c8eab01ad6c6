//! A unit that also acts outside the bus: no two lives of its members are at work at the same time.
//!
//! The members are processes of their own: this test binary again, told by its environment to be one (see [`MEMBER_SERVER`]). Their
//! unit appends a line when it begins and another when it ends to a file that all of them share, and begins only while its permit
//! holds. Between the check and the end of what it allowed a process may be stopped; that and nothing else may overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use vejas::bus::nats::Nats;
use vejas::id::Names;
use vejas::ports::clock::Clock;
use vejas::protocol::Role;
use vejas::protocol::record::Unit;
use vejas::runtime::clock::SystemClock;
use vejas::runtime::ownership::{self, Owned, Settings, members::Describes};
use vejas::unit::context::Context;
use vejas::unit::tenancy::Tenancy;

use crate::nats::{Server, options};
use crate::world::{SHORT_TTL, eventually};

/// Set for a process that is a member: where its server is, where it writes, and its name.
const MEMBER_SERVER: &str = "CLUSTER_TEST_MEMBER_SERVER";
const MEMBER_FILE: &str = "CLUSTER_TEST_MEMBER_FILE";
const MEMBER_NAME: &str = "CLUSTER_TEST_MEMBER_NAME";
/// The test that such a process runs.
const MEMBER_TEST: &str = "exclusive::a_member_runs_the_unit_while_it_may_and_leaves_in_order";
const UNIT: &str = "source/work";
const PROBE: Duration = Duration::from_millis(100);
/// How long one piece of work takes.
const WORK: Duration = Duration::from_millis(20);
const REST: Duration = Duration::from_millis(5);
/// From the check to the end of a piece of work: beyond this the process was stopped on the way. It is what lies between the session
/// gate and the grace (450 ms and 600 ms).
const PAUSE_MS: u64 = 140;
/// How long a process that woke is watched.
const WAKE: Duration = Duration::from_millis(500);
const LEAVE: Duration = Duration::from_secs(5);

fn now_ms() -> u64 {
    u64::try_from(SystemClock.monotonic().as_millis()).unwrap()
}

/// One write call, so that lines of several processes do not mix.
fn append(file: &Path, line: &str) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The unit: pieces of work, one after the other, each begun only while that is allowed.
async fn work(mut tenancy: Tenancy, file: PathBuf, life: String) -> Result<(), String> {
    while tenancy.permitted().await {
        tenancy.progress();
        let checked = now_ms();
        if !tenancy.may_begin() {
            continue;
        }
        append(&file, &format!("{life} begin {checked} {}", now_ms()));
        tokio::time::sleep(WORK).await;
        append(&file, &format!("{life} end {checked} {}", now_ms()));
        tokio::time::sleep(REST).await;
    }
    Ok(())
}

/// A member until `leave` completes or the ownership fails.
async fn member(url: &str, file: PathBuf, name: &str, leave: impl Future<Output = ()>) -> Result<(), ownership::Error> {
    let clock = Arc::new(SystemClock);
    let bus = Nats::connect(options(url)).await.unwrap();
    let context = Context {
        bus: bus.clone(),
        store: bus.clone(),
        names: Names::default(),
        clock,
        instance: Arc::from(name),
        stopping: CancellationToken::new(),
    };
    let settings = Settings::cluster(SHORT_TTL, SHORT_TTL, PROBE, |_| {}).unwrap();
    let describes = Describes { instance: name.to_owned(), ..Describes::default() };
    let (handle, driver) = ownership::start(context, bus, settings, describes);
    let driver = tokio::spawn(driver);
    let life = format!("{name}/{}", std::process::id());
    let run = move |tenancy| -> ownership::Task { Box::pin(work(tenancy, file.clone(), life.clone())) };
    handle.units(BTreeMap::from([(Unit::new(UNIT), Owned::exclusive(Role::Worker, Arc::new(run)))])).await;
    tokio::pin!(driver);
    tokio::select! {
        ended = &mut driver => return ended.unwrap(),
        () = leave => {}
    }
    handle.leave(LEAVE).await;
    driver.await.unwrap()
}

/// By itself a test of one member; in a process that is told so by its environment, that member.
#[test]
fn a_member_runs_the_unit_while_it_may_and_leaves_in_order() {
    let set = |name| std::env::var(name).ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(url) = set(MEMBER_SERVER) {
        let (file, name) = (set(MEMBER_FILE).unwrap(), set(MEMBER_NAME).unwrap());
        let ended = runtime.block_on(async {
            let mut term = signal(SignalKind::terminate()).unwrap();
            member(&url, file.into(), &name, async move { _ = term.recv().await }).await
        });
        return ended.unwrap();
    }
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("work");
    let (of_probe, enough) = (file.clone(), 10);
    let worked = async move {
        while fs::read_to_string(&of_probe).unwrap_or_default().lines().count() < 2 * enough {
            tokio::time::sleep(WORK).await;
        }
    };
    runtime.block_on(member(&server.url(), file.clone(), "alone", worked)).unwrap();
    let left = pieces(&file);
    assert!(left.iter().all(|piece| piece.ended.is_some()), "work in hand ends before the member leaves");
    thread::sleep(2 * WORK);
    assert_eq!(pieces(&file).len(), left.len(), "and none begins after");
}

struct Member {
    child: Child,
    name: String,
}

impl Member {
    fn start(server: &Server, file: &Path, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", MEMBER_TEST, "--nocapture"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.env(MEMBER_SERVER, server.url()).env(MEMBER_FILE, file).env(MEMBER_NAME, name);
        Member { child: command.spawn().unwrap(), name: name.to_owned() }
    }

    /// The name under which it writes.
    fn life(&self) -> String {
        format!("{}/{}", self.name, self.child.id())
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// SIGKILL; answers when it was certainly dead.
    fn kill(&mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        now_ms()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    life: String,
    checked: u64,
    begun: u64,
    ended: Option<u64>,
}

/// What the file says, by the moment of the beginning.
fn pieces(file: &Path) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for line in fs::read_to_string(file).unwrap_or_default().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [life, what, checked, at] = words[..] else { panic!("{line:?}") };
        let (checked, at) = (checked.parse().unwrap(), at.parse().unwrap());
        if what == "begin" {
            pieces.push(Piece { life: life.to_owned(), checked, begun: at, ended: None });
            continue;
        }
        let open = pieces.iter_mut().rev().find(|piece| piece.life == life).unwrap();
        assert_eq!((open.checked, open.ended), (checked, None), "{line:?}");
        open.ended = Some(at);
    }
    pieces.sort_by_key(|piece| piece.begun);
    pieces
}

/// Members that are killed and paused in turn.
struct Campaign {
    server: Server,
    folder: tempfile::TempDir,
    members: Vec<Member>,
    /// When which life was dead.
    died: BTreeMap<String, u64>,
}

impl Campaign {
    fn new() -> Self {
        // A client that does not answer is dropped soon: then nobody listens for a paused member, which is evidence of its death.
        let server = Server::with("ping_interval: \"500ms\"\nping_max: 1");
        let folder = tempfile::tempdir().unwrap();
        let mut campaign = Campaign { server, folder, members: Vec::new(), died: BTreeMap::new() };
        for number in 1..=3 {
            campaign.members.push(Member::start(&campaign.server, &campaign.file(), &format!("m{number}")));
        }
        campaign
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The member that began work last, once one that is not `other` has begun much.
    fn at_work(&self, other: Option<&str>) -> usize {
        let mut found = None;
        let before = pieces(&self.file()).len();
        eventually("a member is at work", || {
            let pieces = pieces(&self.file());
            let last = pieces.last().filter(|piece| Some(piece.life.as_str()) != other && pieces.len() > before + 10);
            found = last.and_then(|last| self.members.iter().position(|member| member.life() == last.life));
            found.is_some()
        });
        found.unwrap()
    }

    fn kill_and_start(&mut self, number: usize) {
        let life = self.members[number].life();
        let died = self.members[number].kill();
        self.died.insert(life.clone(), died);
        self.at_work(Some(&life));
        let name = self.members[number].name.clone();
        self.members[number] = Member::start(&self.server, &self.file(), &name);
    }

    fn pause(&mut self, number: usize, length: Duration) {
        let (member, life) = (&self.members[number], self.members[number].life());
        member.signal("STOP");
        thread::sleep(length);
        self.at_work(Some(&life));
        member.signal("CONT");
        // Long enough for what it might still do.
        thread::sleep(WAKE);
        // One that could not ask the store for a whole time to live ends, and its supervisor starts it again.
        if self.members[number].child.try_wait().unwrap().is_some() {
            // What it had begun before the pause has no end in the file.
            self.died.insert(life, now_ms());
            let name = self.members[number].name.clone();
            self.members[number] = Member::start(&self.server, &self.file(), &name);
        }
    }

    /// No piece of work overlaps another life's, unless it was interrupted between check and end, which a pause does to one piece at
    /// most. Answers how many there were in all.
    fn assert_one_at_a_time(&self, pauses: usize) -> usize {
        let pieces = pieces(&self.file());
        let end = |piece: &Piece| piece.ended.or_else(|| self.died.get(&piece.life).copied()).unwrap_or(u64::MAX);
        let uninterrupted = |piece: &&Piece| end(piece) - piece.checked <= PAUSE_MS;
        let mut interrupted = BTreeSet::new();
        for (at, first) in pieces.iter().enumerate() {
            for second in pieces[at + 1..].iter().take_while(|second| second.begun < end(first)) {
                if first.life == second.life {
                    continue;
                }
                let one = [first, second].into_iter().find(|piece| !uninterrupted(piece));
                let Some(one) = one else { panic!("at the same time: {first:?} and {second:?}") };
                interrupted.insert((&one.life, one.begun));
            }
        }
        let lives: BTreeSet<&str> = pieces.iter().map(|piece| piece.life.as_str()).collect();
        let (count, beside) = (pieces.len(), interrupted.len());
        println!("{count} pieces of work by {} lives; {beside} interrupted ones beside others", lives.len());
        assert!(beside <= pauses, "{interrupted:?}");
        pieces.len()
    }
}

fn rounds(short: usize, full: usize) -> usize {
    if std::env::var_os("VEJAS_TEST_FULL").is_some() { full } else { short }
}

#[test]
fn killed_members_are_followed_by_one_at_a_time() {
    let mut campaign = Campaign::new();
    for _ in 0..rounds(4, 40) {
        let owner = campaign.at_work(None);
        campaign.kill_and_start(owner);
    }
    assert!(campaign.assert_one_at_a_time(0) > 40);
}

#[test]
fn a_paused_member_begins_nothing_when_it_wakes() {
    let mut campaign = Campaign::new();
    let pauses = rounds(4, 40);
    for round in 0..pauses {
        let owner = campaign.at_work(None);
        // Longer than the grace after which somebody else may act, and longer than the time to live.
        campaign.pause(owner, if round % 2 == 0 { Duration::from_secs(1) } else { SHORT_TTL });
    }
    assert!(campaign.assert_one_at_a_time(pauses) > 40);
}
