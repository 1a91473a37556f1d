//! Requests to the node, each with a timeout.

use crate::error::ApiError;
use crate::lengths::RecentSums;
use crate::login::Logins;
use crate::rates::{ClockReading, Rates};
use crate::{Config, Node, entropy};
use axum::body::{Body, Bytes};
use control::{
    CollectWalk, ControlRequest, Counters, NodeResources, QueueFacts, Reply, TrafficFacts,
    TrafficFilter,
};
use env::NodeId;
use http_body::Body as _;
use metadata::{Change, ChangeResult, Cursor, QueueId, Tree};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// Time limit for a reply from the node. Clients usually give up after about 5 s.
const ASK_TIMEOUT: Duration = Duration::from_secs(4);
/// Shard 0 counts as hung if it does not answer a liveness probe for this long.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// State shared by all handlers. Cloning increments a reference count.
#[derive(Clone)]
pub(crate) struct Api(Arc<ApiState>);

/// A reference that does not keep the [`Api`] alive.
pub(crate) struct WeakApi(Weak<ApiState>);

impl WeakApi {
    /// None if the [`Api`] was dropped.
    pub(crate) fn upgrade(&self) -> Option<Api> {
        self.0.upgrade().map(Api)
    }
}

struct ApiState {
    node: Node,
    config: Config,
    logins: Logins,
    rates: Mutex<Rates>,
    recent_depths: RecentSums,
    /// Memory for request bodies, in KiB.
    bodies: Arc<Semaphore>,
    /// When the unanswered liveness probe was sent; None if there is none.
    probe_sent: Mutex<Option<Instant>>,
}

impl Api {
    pub(crate) fn new(node: Node, config: Config) -> std::io::Result<Api> {
        let mut key = [0; 32];
        entropy::fill(&mut key)?;
        let bodies = Arc::new(Semaphore::new(config.memory.bodies()));
        Ok(Api(Arc::new(ApiState {
            node,
            config,
            logins: Logins::new(key),
            rates: Mutex::new(Rates::default()),
            recent_depths: RecentSums::default(),
            bodies,
            probe_sent: Mutex::new(None),
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

    /// Rate history. Do not hold the lock across an await.
    pub(crate) fn rates(&self) -> MutexGuard<'_, Rates> {
        let rates = &self.0.rates;
        rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn recent_depths(&self) -> &RecentSums {
        &self.0.recent_depths
    }

    /// Reads a request body. It reserves memory from the budget of all request bodies until the
    /// permit is dropped.
    pub(crate) async fn read_body(
        &self,
        body: Body,
        limit: usize,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
        let exact_size = body.size_hint().exact();
        let length = exact_size.and_then(|n| usize::try_from(n).ok());
        let length = length.map_or(limit, |n| n.min(limit));
        let mut permit = None;
        if length > 0 {
            let cost = self.config().memory.body_cost(length);
            let acquired = self.0.bodies.clone().acquire_many_owned(cost).await;
            permit = Some(acquired.map_err(|_| ApiError::unavailable("the node is stopping"))?);
        }
        let read = axum::body::to_bytes(body, limit).await;
        Ok((read.map_err(|_| ApiError::too_large(limit))?, permit))
    }

    /// Reserves memory for `bytes` bytes from the budget of all request bodies, or all of the budget.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let cost = self.config().memory.reply_cost(bytes);
        let acquired = self.0.bodies.clone().acquire_many_owned(cost).await;
        acquired.map_err(|_| ApiError::unavailable("the node is stopping"))
    }

    /// Resource usage of a node. Counters have that of other nodes, unless their version is older.
    pub(crate) fn resources_of(&self, node: NodeId, counters: &Counters) -> NodeResources {
        if node == self.0.config.node {
            return self.0.config.node_resources();
        }
        counters.resources.unwrap_or_default()
    }

    pub(crate) fn moment(&self) -> ClockReading {
        let clock = &self.0.config.clock.0;
        ClockReading {
            now: clock.now(),
            wall: clock.wall(),
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> ControlRequest,
    ) -> Result<T, ApiError> {
        self.ask_within(ASK_TIMEOUT, request).await
    }

    /// Sends a request to the node. Requests that are begun before others are answered run at the same time.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        request: impl FnOnce(Reply<T>) -> ControlRequest,
    ) -> oneshot::Receiver<T> {
        let (send, receive) = oneshot::channel();
        (self.0.node)(request(Box::new(move |answer| {
            // The receiver is gone if the client disconnected or the timeout elapsed.
            let _ = send.send(answer);
        })));
        receive
    }

    /// As [`Api::ask`], with a time limit for requests that transfer much.
    pub(crate) async fn ask_within<T: Send + 'static>(
        &self,
        limit: Duration,
        request: impl FnOnce(Reply<T>) -> ControlRequest,
    ) -> Result<T, ApiError> {
        answer_of(limit, self.begin(request)).await
    }

    /// Reads a small amount of data from the tree, in one turn of shard 0. Use [`Api::walk`] for
    /// collections without a bound.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Tree) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        self.ask(|reply| ControlRequest::Read(Box::new(move |tree| reply(look(tree)))))
            .await
    }

    /// Collects the results of `pick` for the items of a cursor, in cursor order. Shard 0 serves
    /// its clients in between, so an item that is created or deleted during the walk may be
    /// missing.
    pub(crate) async fn walk<C, T>(
        &self,
        cursor: C,
        pick: impl FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>, ApiError>
    where
        C: Cursor + 'static,
        T: Send + 'static,
    {
        self.ask(|reply| ControlRequest::Walk(Box::new(CollectWalk::new(cursor, pick, reply))))
            .await
    }

    pub(crate) async fn change(&self, change: Change) -> Result<ChangeResult, ApiError> {
        let result = self
            .ask(|reply| ControlRequest::Change { change, reply })
            .await?;
        Ok(result?)
    }

    /// Statistics of one queue, or of all.
    pub(crate) async fn queue_facts(
        &self,
        only: Option<QueueId>,
    ) -> Result<Vec<QueueFacts>, ApiError> {
        self.ask(|reply| ControlRequest::Queues { only, reply })
            .await
    }

    /// Traffic counts of virtual hosts and exchanges. Large filters are split into parts that a
    /// shard answers in one turn.
    pub(crate) async fn traffic(&self, filter: TrafficFilter) -> Result<TrafficFacts, ApiError> {
        /// Maximum entries of the filter of one [`ControlRequest::Traffic`].
        const PART: usize = 1_000;
        let vhosts = filter.vhosts.chunks(PART).map(|part| TrafficFilter {
            vhosts: part.to_vec(),
            ..TrafficFilter::default()
        });
        let exchanges = filter.exchanges.chunks(PART).map(|part| TrafficFilter {
            exchanges: part.to_vec(),
            ..TrafficFilter::default()
        });
        let mut all = TrafficFacts::default();
        for filter in vhosts.chain(exchanges) {
            all.add(
                &self
                    .ask(|reply| ControlRequest::Traffic { of: filter, reply })
                    .await?,
            );
        }
        Ok(all)
    }

    /// Returns false if shard 0 hangs. Never waits: sends a liveness probe and checks how long the
    /// previous one has been unanswered.
    pub(crate) fn is_alive(&self) -> bool {
        let mut since = self.probe_sent();
        if let Some(since) = *since {
            return since.elapsed() < HANG_TIMEOUT;
        }
        *since = Some(Instant::now());
        drop(since);
        let probe = LivenessProbe(Arc::downgrade(&self.0));
        (self.0.node)(ControlRequest::Read(Box::new(move |_| drop(probe))));
        true
    }

    fn probe_sent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.probe_sent()
    }
}

impl ApiState {
    fn probe_sent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.probe_sent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the probe as answered when it is dropped: by shard 0 after it ran, or because it was
/// refused, as while the node starts and no shard can hang yet.
struct LivenessProbe(Weak<ApiState>);

impl Drop for LivenessProbe {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            *shared.probe_sent() = None;
        }
    }
}

/// The answer to a request that was begun.
pub(crate) async fn answer_of<T>(
    limit: Duration,
    receive: oneshot::Receiver<T>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(limit, receive).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(ApiError::unavailable("the node is stopping")),
        Err(_) => Err(ApiError::unavailable("the node did not answer in time")),
    }
}
