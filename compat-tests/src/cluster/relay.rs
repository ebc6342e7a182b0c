//! A network of relays on the loopback interface, for where namespaces are refused and for delays.
//!
//! Every node listens on a port that only its relay connects to, and advertises the relay's. The relay finds out which
//! node opened a connection by looking up who owns the other socket (`/proc/net/tcp` and `/proc/PID/fd`), so each
//! direction of each pair of nodes is a link that can be cut, delayed and throttled by itself. Connections of other
//! processes are clients' and pass freely. It looks only while some link is not as it should be: thousands of sockets may
//! be in that list, and nodes that find others down try to connect many times a second.
//!
//! A cut link holds bytes back, as TCP would send them again once packets pass; nothing is ever lost in the middle of
//! a connection. Chunks of a slow link are delayed one after the other, which makes a long delay a low rate as well.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Addresses, NodeNumber};
use crate::ports::free_port;

/// How often a waiting thread looks whether it should do something else.
const TICK: Duration = Duration::from_millis(5);
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
const CHUNK_BYTES: usize = 64 * 1024;

/// What a link does to the bytes that pass it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Nothing passes.
    pub cut: bool,
    /// Every chunk waits this long.
    pub delay: Duration,
    /// And no more passes than this.
    pub bytes_per_second: Option<u64>,
}

#[derive(Default)]
struct Shared {
    links: Mutex<HashMap<(NodeNumber, NodeNumber), Link>>,
    processes: Mutex<HashMap<NodeNumber, u32>>,
    /// Whether any link does something to what passes it.
    disturbed: AtomicBool,
    closing: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn link(&self, from: NodeNumber, to: NodeNumber) -> Link {
        let links = lock(&self.links);
        links.get(&(from, to)).copied().unwrap_or_default()
    }

    /// Whether anything that passes to or from a node is held back now.
    fn is_cut(&self, node: NodeNumber) -> bool {
        let links = lock(&self.links);
        links
            .iter()
            .any(|((from, to), link)| link.cut && (*from == node || *to == node))
    }

    fn closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

/// A connection to a node. Who opened it is looked up once, when it first makes a difference.
struct Connection<'a> {
    shared: &'a Shared,
    near: &'a TcpStream,
    opened_by: OnceLock<Option<NodeNumber>>,
    to: NodeNumber,
}

/// In which direction bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    There,
    Back,
}

impl Connection<'_> {
    /// The link that bytes pass in this direction now. One to or from a client is always free.
    fn link(&self, direction: Direction) -> Link {
        if !self.shared.disturbed.load(Ordering::Relaxed) {
            return Link::default();
        }
        let find = || source(self.shared, self.near).unwrap_or_default();
        match (self.opened_by.get_or_init(find), direction) {
            (Some(from), Direction::There) => self.shared.link(*from, self.to),
            (Some(from), Direction::Back) => self.shared.link(self.to, *from),
            (None, _) => Link::default(),
        }
    }

    /// Waits until the link lets bytes pass; whether it ever did.
    fn wait_for(&self, direction: Direction) -> bool {
        while self.link(direction).cut {
            if self.shared.closing() {
                return false;
            }
            std::thread::sleep(TICK);
        }
        true
    }
}

/// The relays of a cluster.
pub struct Relays {
    shared: Arc<Shared>,
    addresses: HashMap<NodeNumber, Addresses>,
    acceptors: Vec<JoinHandle<()>>,
}

impl Relays {
    /// Opens two relays for each node: to its brokers' listener and to its controllers'.
    pub fn new(numbers: &[NodeNumber]) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut this = Self {
            shared: Arc::clone(&shared),
            addresses: HashMap::new(),
            acceptors: Vec::new(),
        };
        for &number in numbers {
            let (broker, broker_bind) = this.open(number)?;
            let (controller, controller_bind) = this.open(number)?;
            this.addresses.insert(
                number,
                Addresses {
                    broker,
                    controller,
                    broker_bind,
                    controller_bind,
                },
            );
        }
        Ok(this)
    }

    fn open(&mut self, to: NodeNumber) -> Result<(SocketAddr, SocketAddr)> {
        let relay = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let behind = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listener = TcpListener::bind(relay)?;
        listener.set_nonblocking(true)?;
        let shared = Arc::clone(&self.shared);
        self.acceptors.push(std::thread::spawn(move || {
            accept(&shared, &listener, to, behind);
        }));
        Ok((relay, behind))
    }

    /// Where a node listens, and where all others find it.
    pub fn addresses(&self, number: NodeNumber) -> Result<Addresses> {
        self.addresses
            .get(&number)
            .copied()
            .with_context(|| format!("no relay to node {number}"))
    }

    /// Says which process is the node from now on.
    pub fn runs_as(&self, number: NodeNumber, pid: u32) {
        lock(&self.shared.processes).insert(number, pid);
    }

    /// Changes what the link does, for open connections too.
    pub fn change(&self, from: NodeNumber, to: NodeNumber, change: impl FnOnce(&mut Link)) {
        let mut links = lock(&self.shared.links);
        change(links.entry((from, to)).or_default());
        let disturbed = links.values().any(|link| *link != Link::default());
        self.shared.disturbed.store(disturbed, Ordering::Relaxed);
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        for acceptor in self.acceptors.drain(..) {
            let _ = acceptor.join();
        }
    }
}

/// Takes connections until the relays close, and waits for those it took.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, to: NodeNumber, behind: SocketAddr) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    while !shared.closing() {
        match listener.accept() {
            Ok((near, _)) => {
                connections.retain(|connection| !connection.is_finished());
                let shared = Arc::clone(shared);
                connections.push(std::thread::spawn(move || {
                    // Either end may go away at any time; then the other is told by closing it.
                    let _ = relay(&shared, &near, to, behind);
                    let _ = near.shutdown(Shutdown::Both);
                }));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(TICK),
            Err(_) => std::thread::sleep(TICK),
        }
    }
    for connection in connections {
        let _ = connection.join();
    }
}

fn relay(shared: &Arc<Shared>, near: &TcpStream, to: NodeNumber, behind: SocketAddr) -> Result<()> {
    near.set_nonblocking(false)?;
    let reach = || TcpStream::connect_timeout(&behind, CONNECT_PATIENCE);
    // Who asks is looked for among all sockets of the machine. A node that is down is asked again and again, by
    // everybody, and refuses them all.
    let reached = if shared.is_cut(to) {
        None
    } else {
        Some(reach()?)
    };
    let connection = Connection {
        shared,
        near,
        opened_by: OnceLock::new(),
        to,
    };
    // A connection needs both directions to come up.
    if !connection.wait_for(Direction::There) || !connection.wait_for(Direction::Back) {
        return Ok(());
    }
    let far = match reached {
        Some(far) => far,
        None => reach()?,
    };
    for stream in [near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    }
    std::thread::scope(|scope| {
        let back = scope.spawn(|| pump(&connection, &far, near, Direction::Back));
        let there = pump(&connection, near, &far, Direction::There);
        let _ = back.join();
        there
    })
}

/// Carries bytes one way until one end closes, then closes both.
fn pump(
    connection: &Connection<'_>,
    mut source: &TcpStream,
    mut sink: &TcpStream,
    direction: Direction,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let result = loop {
        if connection.shared.closing() {
            break Ok(());
        }
        let read = source.read(&mut chunk);
        // Also where nothing has come: whose it is cannot be told any more once its process is gone.
        let link = connection.link(direction);
        let count = match read {
            Ok(0) => break Ok(()),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => break Err(error.into()),
        };
        std::thread::sleep(link.delay);
        if !connection.wait_for(direction) {
            break Ok(());
        }
        if let Err(error) = sink.write_all(&chunk[..count]) {
            break Err(error.into());
        }
        if let Some(rate) = link.bytes_per_second {
            std::thread::sleep(Duration::from_secs_f64(count as f64 / rate.max(1) as f64));
        }
    };
    // The news that an end is gone does not pass a cut either.
    connection.wait_for(direction);
    for stream in [source, sink] {
        let _ = stream.shutdown(Shutdown::Both);
    }
    result
}

/// The node whose process opened the connection, if any did.
fn source(shared: &Shared, near: &TcpStream) -> Result<Option<NodeNumber>> {
    let (SocketAddr::V4(theirs), SocketAddr::V4(ours)) = (near.peer_addr()?, near.local_addr()?)
    else {
        return Ok(None);
    };
    // The client may be IPv6 sockets' mapped form, as the JVM's are.
    let mut inode = None;
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        inode = inode.or_else(|| inode_of(&text, theirs, ours));
    }
    let Some(inode) = inode else {
        return Ok(None);
    };
    let wanted = format!("socket:[{inode}]");
    let processes: Vec<(NodeNumber, u32)> = lock(&shared.processes)
        .iter()
        .map(|(&number, &pid)| (number, pid))
        .collect();
    Ok(processes
        .into_iter()
        .find(|(_, pid)| owns(*pid, &wanted))
        .map(|(number, _)| number))
}

fn owns(pid: u32, socket: &str) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == socket)
        })
    })
}

/// The inode of the socket with these ends, from the text of `/proc/net/tcp` or `tcp6`.
fn inode_of(table: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u64> {
    let plain = |address: SocketAddrV4| {
        let ip = u32::from_ne_bytes(address.ip().octets());
        format!("{ip:08X}:{:04X}", address.port())
    };
    let (local, remote) = (plain(local), plain(remote));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is = |field: Option<&str>, wanted: &str| {
            field.is_some_and(|field| {
                field == wanted || (field.len() > 13 && field.ends_with(wanted))
            })
        };
        if is(fields.next(), &local) && is(fields.next(), &remote) {
            fields.nth(6)?.parse().ok()
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that sends back what it gets, and a relay in front of it.
    fn echo() -> (Relays, SocketAddr) {
        let relays = Relays::new(&[1, 2]).unwrap();
        let addresses = relays.addresses(2).unwrap();
        let listener = TcpListener::bind(addresses.broker_bind).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while (&stream).read_exact(&mut byte).is_ok() {
                        let _ = (&stream).write_all(&byte);
                    }
                });
            }
        });
        (relays, addresses.broker)
    }

    fn exchange(stream: &mut TcpStream, patience: Duration) -> std::io::Result<()> {
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])
    }

    #[test]
    fn a_link_between_nodes_can_be_cut_one_way_and_joined_again_while_clients_pass() {
        let (relays, address) = echo();
        let mut client = TcpStream::connect(address).unwrap();
        // Who has opened a connection is looked up once, here while this process is no node yet.
        relays.change(2, 2, |link| link.cut = true);
        exchange(&mut client, Duration::from_secs(5)).unwrap();
        relays.change(2, 2, |link| link.cut = false);
        // From here on it is node 1.
        relays.runs_as(1, std::process::id());
        let mut node = TcpStream::connect(address).unwrap();
        exchange(&mut node, Duration::from_secs(5)).unwrap();
        for (from, to) in [(1, 2), (2, 1)] {
            relays.change(from, to, |link| link.cut = true);
            exchange(&mut node, Duration::from_millis(200)).unwrap_err();
            exchange(&mut client, Duration::from_secs(5)).unwrap();
            relays.change(from, to, |link| link.cut = false);
            node.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            node.read_exact(&mut [0])
                .expect("what was held back comes through");
        }
    }

    #[test]
    fn a_delayed_link_takes_its_time() {
        let (relays, address) = echo();
        relays.runs_as(1, std::process::id());
        relays.change(2, 1, |link| link.delay = Duration::from_millis(150));
        let mut node = TcpStream::connect(address).unwrap();
        let started = std::time::Instant::now();
        exchange(&mut node, Duration::from_secs(5)).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(150));
    }

    #[test]
    fn sockets_are_found_in_both_tables_of_the_kernel() {
        let four = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:8AE6 0100007F:2EE0 01 00000000:00000000 00:00000000 00000000     0        0 35423 1 0000000000000000";
        let six = "  sl  local_address                         remote_address ...\n\
             0: 0000000000000000FFFF00000100007F:8AE6 0000000000000000FFFF00000100007F:2EE0 01 00000000:00000000 00:00000000 00000000     0        0 35424 1 0000000000000000";
        let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0x8ae6);
        let remote = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0x2ee0);
        assert_eq!(inode_of(four, local, remote), Some(35423));
        assert_eq!(inode_of(six, local, remote), Some(35424));
        assert_eq!(inode_of(four, remote, local), None);
    }
}
