//! Free TCP ports on the loopback interface, never the same one twice in a process.
//!
//! Ports come from below the kernel's range for outgoing connections, so that no client socket takes one between the
//! moment it is found free and the moment a broker binds it.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A port of 127.0.0.1 that nothing listens on.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes that run side by side start at different places.
    let start = std::process::id().wrapping_mul(619);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step) % COUNT;
        let Ok(port) = u16::try_from(port) else {
            continue;
        };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
