//! Asking the node, with a bound on the wait.

use crate::error::ApiError;
use crate::lengths::RecentSums;
use crate::login::Logins;
use crate::rates::{Moment, Rates};
use crate::{Config, Node, entropy};
use axum::body::{Body, Bytes};
use control::{Collect, ControlRequest, QueueFacts, Reply, TrafficFacts, TrafficFilter};
use http_body::Body as _;
use metadata::{Change, ChangeResult, Cursor, QueueId, Tree};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// An answer of the node later than this is not waited for; clients give up at about 5 s.
const ASK_TIMEOUT: Duration = Duration::from_secs(4);
/// Shard 0 that has not answered for so long hangs.
const HANGS: Duration = Duration::from_secs(60);

/// What handlers work with. Cloning counts a reference.
#[derive(Clone)]
pub(crate) struct Api(Arc<Shared>);

/// Does not keep it alive.
pub(crate) struct WeakApi(Weak<Shared>);

impl WeakApi {
    /// None: it is gone.
    pub(crate) fn upgrade(&self) -> Option<Api> {
        self.0.upgrade().map(Api)
    }
}

struct Shared {
    node: Node,
    config: Config,
    logins: Logins,
    rates: Mutex<Rates>,
    lately: RecentSums,
    /// Memory for bodies of requests, in KiB.
    bodies: Arc<Semaphore>,
    /// Since when a sign of life is waited for.
    unanswered: Mutex<Option<Instant>>,
}

impl Api {
    pub(crate) fn new(node: Node, config: Config) -> std::io::Result<Api> {
        let mut key = [0; 32];
        entropy::fill(&mut key)?;
        let bodies = Arc::new(Semaphore::new(config.memory.bodies()));
        Ok(Api(Arc::new(Shared {
            node,
            config,
            logins: Logins::new(key),
            rates: Mutex::new(Rates::default()),
            lately: RecentSums::default(),
            bodies,
            unanswered: Mutex::new(None),
        })))
    }

    pub(crate) fn downgrade(&self) -> WeakApi {
        WeakApi(Arc::downgrade(&self.0))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn logins(&self) -> &Logins {
        &self.0.logins
    }

    /// What was shown before; never held while waiting.
    pub(crate) fn rates(&self) -> MutexGuard<'_, Rates> {
        let rates = &self.0.rates;
        rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lately(&self) -> &RecentSums {
        &self.0.lately
    }

    /// Reads the body of a request within the memory that all bodies share, which it holds as long as the permit lives.
    pub(crate) async fn read_body(
        &self,
        body: Body,
        limit: usize,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
        let announced = body.size_hint().exact();
        let length = announced.and_then(|n| usize::try_from(n).ok());
        let length = length.map_or(limit, |n| n.min(limit));
        let mut permit = None;
        if length > 0 {
            let cost = self.config().memory.body_cost(length);
            let held = self.0.bodies.clone().acquire_many_owned(cost).await;
            permit = Some(held.map_err(|_| ApiError::unavailable("the node is stopping"))?);
        }
        let read = axum::body::to_bytes(body, limit).await;
        Ok((read.map_err(|_| ApiError::too_large(limit))?, permit))
    }

    pub(crate) fn moment(&self) -> Moment {
        let clock = &self.0.config.clock.0;
        Moment {
            now: clock.now(),
            wall: clock.wall(),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> ControlRequest,
    ) -> Result<T, ApiError> {
        let (send, receive) = oneshot::channel();
        (self.0.node)(request(Box::new(move |answer| {
            // Nobody waits any more when the client has gone or the time is over.
            let _ = send.send(answer);
        })));
        match tokio::time::timeout(ASK_TIMEOUT, receive).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(ApiError::unavailable("the node is stopping")),
            Err(_) => Err(ApiError::unavailable("the node did not answer in time")),
        }
    }

    /// Copies something small out of the tree, in one turn of shard 0: [`Api::walk`] is for whatever there may be many of.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.ask(|reply| ControlRequest::Read(Box::new(move |tree| reply(look(tree)))))
            .await
    }

    /// What `pick` makes of each item that the cursor finds, in the cursor's order. Shard 0 serves its clients in between: an item
    /// that comes or goes meanwhile may be missing.
    pub(crate) async fn walk<C, T>(
        &self,
        cursor: C,
        pick: impl FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>, ApiError>
    where
        C: Cursor + 'static,
        T: Send + 'static,
    {
        self.ask(|reply| ControlRequest::Walk(Box::new(Collect::new(cursor, pick, reply))))
            .await
    }

    pub(crate) async fn change(&self, change: Change) -> Result<ChangeResult, ApiError> {
        let result = self
            .ask(|reply| ControlRequest::Change { change, reply })
            .await?;
        Ok(result?)
    }

    /// Figures of one queue or of all.
    pub(crate) async fn queue_facts(
        &self,
        only: Option<QueueId>,
    ) -> Result<Vec<QueueFacts>, ApiError> {
        self.ask(|reply| ControlRequest::Queues { only, reply })
            .await
    }

    /// What clients did in virtual hosts and with exchanges: asked for in parts that a shard answers in one turn.
    pub(crate) async fn traffic(&self, of: TrafficFilter) -> Result<TrafficFacts, ApiError> {
        /// [`ControlRequest::Traffic`]
        const PART: usize = 1_000;
        let vhosts = of.vhosts.chunks(PART).map(|part| TrafficFilter {
            vhosts: part.to_vec(),
            ..TrafficFilter::default()
        });
        let exchanges = of.exchanges.chunks(PART).map(|part| TrafficFilter {
            exchanges: part.to_vec(),
            ..TrafficFilter::default()
        });
        let mut all = TrafficFacts::default();
        for of in vhosts.chain(exchanges) {
            all.add(
                &self
                    .ask(|reply| ControlRequest::Traffic { of, reply })
                    .await?,
            );
        }
        Ok(all)
    }

    /// Whether shard 0 still turns. Never waits: a sign of life is asked for, and missed when it stays away too long.
    pub(crate) fn alive(&self) -> bool {
        let mut since = self.unanswered();
        if let Some(since) = *since {
            return since.elapsed() < HANGS;
        }
        *since = Some(Instant::now());
        drop(since);
        let sign = SignOfLife(Arc::downgrade(&self.0));
        (self.0.node)(ControlRequest::Read(Box::new(move |_| drop(sign))));
        true
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.unanswered()
    }
}

impl Shared {
    fn unanswered(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the wait when it is dropped: by shard 0 that took it, or because it was refused, as while the node starts and
/// there is no shard that could hang.
struct SignOfLife(Weak<Shared>);

impl Drop for SignOfLife {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            *shared.unanswered() = None;
        }
    }
}
