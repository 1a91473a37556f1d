//! Name resolution on its own threads: the system resolver blocks, and heartbeats must not wait for
//! it.

use crate::config::PeerAddress;
use crate::peering::TargetId;
use reactor::ThreadWaker;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of concurrent lookups.
const THREADS: usize = 2;

/// Purpose of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolveTarget {
    Dial(TargetId),
    Expand,
}

type ResolveRequest = (ResolveTarget, PeerAddress);
type ResolvedAddresses = (ResolveTarget, PeerAddress, Result<Vec<SocketAddr>, String>);

/// Dropping it ends its threads.
pub(crate) struct Resolver {
    requests: Sender<ResolveRequest>,
    answers: Receiver<ResolvedAddresses>,
}

impl Resolver {
    pub(crate) fn start(wake: Arc<ThreadWaker>) -> io::Result<Resolver> {
        let (requests, inbox) = channel::<ResolveRequest>();
        let (outbox, answers) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        for i in 0..THREADS {
            let (inbox, outbox, wake) = (inbox.clone(), outbox.clone(), wake.clone());
            let name = format!("resolver-{i}");
            std::thread::Builder::new()
                .name(name)
                .spawn(move || run_worker(&inbox, &outbox, &wake))?;
        }
        Ok(Resolver { requests, answers })
    }

    pub(crate) fn ask(&self, target: ResolveTarget, address: PeerAddress) {
        // The threads live as long as `self`.
        let _ = self.requests.send((target, address));
    }

    pub(crate) fn answer(&self) -> Option<ResolvedAddresses> {
        self.answers.try_recv().ok()
    }
}

fn run_worker(
    inbox: &Mutex<Receiver<ResolveRequest>>,
    outbox: &Sender<ResolvedAddresses>,
    wake: &ThreadWaker,
) {
    loop {
        let request = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((target, address)) = request else {
            return;
        };
        let addresses = (address.host.as_str(), address.port)
            .to_socket_addrs()
            .map(Iterator::collect::<Vec<_>>)
            .map_err(|e| e.to_string());
        if outbox.send((target, address, addresses)).is_err() {
            return;
        }
        wake.wake();
    }
}
