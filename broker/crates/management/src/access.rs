//! Authorization of requests: user tags, with RabbitMQ's meanings, and permissions in vhosts.

use crate::ask::Api;
use crate::error::ApiError;
use crate::page::Query;
use metadata::{Identity, Name, UserRecord};
use operations::{Caller, OperationResult};
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// An authenticated request.
pub(crate) struct AuthenticatedRequest {
    pub(crate) user: Arc<UserRecord>,
    /// The identity from an external backend. `user` is then synthetic.
    pub(crate) identity: Option<Arc<Identity>>,
    /// The client presented the operator's certificate. `user` is then synthetic: a stored user
    /// with the same name is unrelated.
    pub(crate) is_operator: bool,
    /// The client has a loopback address, so that it runs on the node's machine.
    pub(crate) is_local: bool,
    /// The method is PUT or POST.
    pub(crate) is_put_or_post: bool,
    pub(crate) query: Query,
    pub(crate) body: axum::body::Bytes,
    /// The `X-Reason` header.
    pub(crate) reason: Option<String>,
    /// The headers `traceparent` and `tracestate`, if the node exports traces and the first is valid.
    pub(crate) trace: Option<(String, Option<String>)>,
}

impl AuthenticatedRequest {
    fn has(&self, tag: &str) -> bool {
        self.user.tags.iter().any(|t| &**t == tag)
    }

    pub(crate) fn is_administrator(&self) -> bool {
        self.has("administrator")
    }

    /// Returns true if the user may see other users' objects.
    pub(crate) fn is_monitor(&self) -> bool {
        self.is_administrator() || self.has("monitoring")
    }

    fn is_policymaker(&self) -> bool {
        self.is_administrator() || self.has("policymaker")
    }

    /// Succeeds if the user has any tag that grants access to this API.
    pub(crate) fn require_management(&self) -> Result<(), ApiError> {
        if self.is_monitor() || self.is_policymaker() || self.has("management") {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not management user"))
    }

    pub(crate) fn require_administrator(&self) -> Result<(), ApiError> {
        if self.is_administrator() {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not administrator user"))
    }

    pub(crate) fn require_monitoring(&self) -> Result<(), ApiError> {
        if self.is_monitor() {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not monitor user"))
    }

    pub(crate) fn require_policymaker(&self) -> Result<(), ApiError> {
        if self.is_policymaker() {
            return Ok(());
        }
        Err(ApiError::not_authorised(
            "User not authorised to access object",
        ))
    }

    /// Parses the body as a JSON object. An empty body is an empty object.
    pub(crate) fn object(&self) -> Result<Map<String, Json>, ApiError> {
        if self.body.is_empty() {
            return Ok(Map::new());
        }
        match serde_json::from_slice(&self.body) {
            Ok(Json::Object(object)) => Ok(object),
            Ok(Json::Null) => Ok(Map::new()),
            Ok(_) | Err(_) => Err(ApiError::bad_request("not_json")),
        }
    }

    /// The error for a path whose virtual host does not exist.
    pub(crate) fn vhost_not_found(&self) -> ApiError {
        match self.is_put_or_post {
            true => ApiError::missing("vhost_not_found"),
            false => ApiError::not_found(),
        }
    }
}

impl Api {
    /// Fails with 404 if the vhost does not exist, and with 401 unless the user is an administrator
    /// or has permissions in it.
    pub(crate) async fn require_vhost_visible(
        &self,
        call: &AuthenticatedRequest,
        vhost: &str,
    ) -> Result<(), ApiError> {
        let (user, name) = (call.user.clone(), vhost.to_owned());
        let identity = call.identity.clone();
        let found = self
            .read(move |tree| {
                tree.vhost_exists(&name).then(|| {
                    tree.access_of(&user.name, identity.as_deref())
                        .has_vhost(&name)
                })
            })
            .await?;
        match found {
            None => Err(call.vhost_not_found()),
            Some(access) if access || call.is_administrator() => Ok(()),
            Some(_) => Err(ApiError::not_authorised(
                "User not authorised to access virtual host",
            )),
        }
    }

    /// Like [`Api::require_vhost_visible`], for changes: tags do not help, the user must have
    /// permissions in the vhost.
    pub(crate) async fn require_vhost_access(
        &self,
        call: &AuthenticatedRequest,
        vhost: &str,
    ) -> Result<(), ApiError> {
        let (user, name) = (call.user.clone(), vhost.to_owned());
        let identity = call.identity.clone();
        let found = self
            .read(move |tree| {
                tree.vhost_exists(&name).then(|| {
                    tree.access_of(&user.name, identity.as_deref())
                        .has_vhost(&name)
                })
            })
            .await?;
        match found {
            None => Err(call.vhost_not_found()),
            Some(access) if access || call.is_operator => Ok(()),
            Some(_) => Err(ApiError::not_authorised(
                "User not authorised to access virtual host",
            )),
        }
    }

    /// Runs a check or plan of an operation for the user of the request, against the tree of this node.
    pub(crate) async fn operate<T: Send + 'static>(
        &self,
        call: &AuthenticatedRequest,
        vhost: &str,
        operation: impl FnOnce(Caller<'_>) -> OperationResult<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (user, vhost) = (call.user.clone(), Name::from(vhost));
        let is_operator = call.is_operator;
        let identity = call.identity.clone();
        let result = self
            .read(move |tree| {
                operation(Caller {
                    tree,
                    user: &user.name,
                    identity: identity.as_deref(),
                    vhost: &vhost,
                    session: None,
                    is_operator,
                    refusals: None,
                })
            })
            .await?;
        Ok(result?)
    }

    /// Vhosts whose contents the user may see; None means all.
    pub(crate) async fn visible_vhosts(
        &self,
        call: &AuthenticatedRequest,
    ) -> Result<Option<std::collections::BTreeSet<String>>, ApiError> {
        if call.is_administrator() {
            return Ok(None);
        }
        let (user, identity) = (call.user.clone(), call.identity.clone());
        self.read(move |tree| {
            let access = tree.access_of(&user.name, identity.as_deref());
            let vhosts = tree.vhosts().into_iter();
            let own = vhosts.filter(|vhost| access.has_vhost(&vhost.name));
            Some(own.map(|vhost| vhost.name.to_string()).collect())
        })
        .await
    }
}
