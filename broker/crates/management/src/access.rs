//! What a request may do: tags, as RabbitMQ's management has them, and rights in vhosts.

use crate::ask::Api;
use crate::error::ApiError;
use crate::page::Query;
use metadata::{Right, UserRecord};
use serde_json::{Map, Value as Json};
use std::sync::Arc;

/// An authenticated request.
pub(crate) struct Call {
    pub(crate) user: Arc<UserRecord>,
    /// The holder of the operator's certificate asks. `user` is then made up: a user of that name has nothing to do with it.
    pub(crate) is_operator: bool,
    /// It makes or changes something: PUT or POST.
    pub(crate) makes: bool,
    pub(crate) query: Query,
    pub(crate) body: axum::body::Bytes,
    /// `X-Reason`
    pub(crate) reason: Option<String>,
}

impl Call {
    fn has(&self, tag: &str) -> bool {
        self.user.tags.iter().any(|t| &**t == tag)
    }

    pub(crate) fn is_administrator(&self) -> bool {
        self.has("administrator")
    }

    /// May see what belongs to others.
    pub(crate) fn is_monitor(&self) -> bool {
        self.is_administrator() || self.has("monitoring")
    }

    fn is_policymaker(&self) -> bool {
        self.is_administrator() || self.has("policymaker")
    }

    /// Any of the tags that open this API.
    pub(crate) fn management(&self) -> Result<(), ApiError> {
        if self.is_monitor() || self.is_policymaker() || self.has("management") {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not management user"))
    }

    pub(crate) fn administrator(&self) -> Result<(), ApiError> {
        if self.is_administrator() {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not administrator user"))
    }

    pub(crate) fn monitor(&self) -> Result<(), ApiError> {
        if self.is_monitor() {
            return Ok(());
        }
        Err(ApiError::not_authorised("Not monitor user"))
    }

    pub(crate) fn policymaker(&self) -> Result<(), ApiError> {
        if self.is_policymaker() {
            return Ok(());
        }
        Err(ApiError::not_authorised(
            "User not authorised to access object",
        ))
    }

    /// The body as a JSON object; an empty one is an empty object.
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

    /// The virtual host of the path is not there.
    pub(crate) fn no_vhost(&self) -> ApiError {
        match self.makes {
            true => ApiError::missing("vhost_not_found"),
            false => ApiError::not_found(),
        }
    }
}

impl Api {
    /// 404 when there is no such vhost, 401 when the user may not look into it: who has rights there, and administrators.
    pub(crate) async fn visible(&self, call: &Call, vhost: &str) -> Result<(), ApiError> {
        let (user, name) = (call.user.clone(), vhost.to_owned());
        let found = self
            .read(move |tree| {
                tree.vhost_exists(&name)
                    .then(|| tree.vhost_access(&user.name, &name))
            })
            .await?;
        match found {
            None => Err(call.no_vhost()),
            Some(access) if access || call.is_administrator() => Ok(()),
            Some(_) => Err(ApiError::not_authorised(
                "User not authorised to access virtual host",
            )),
        }
    }

    /// As [`Api::visible`] for changing something: the user must have rights in the vhost, whatever its tags.
    pub(crate) async fn member(&self, call: &Call, vhost: &str) -> Result<(), ApiError> {
        let (user, name) = (call.user.clone(), vhost.to_owned());
        let found = self
            .read(move |tree| {
                tree.vhost_exists(&name)
                    .then(|| tree.vhost_access(&user.name, &name))
            })
            .await?;
        match found {
            None => Err(call.no_vhost()),
            Some(access) if access || call.is_operator => Ok(()),
            Some(_) => Err(ApiError::not_authorised(
                "User not authorised to access virtual host",
            )),
        }
    }

    /// The rights that the same operation over AMQP would need.
    pub(crate) async fn permitted(
        &self,
        call: &Call,
        vhost: &str,
        needs: Vec<(Right, ResourceName)>,
    ) -> Result<(), ApiError> {
        if call.is_operator {
            return Ok(());
        }
        let (user, name) = (call.user.clone(), vhost.to_owned());
        let missing = self
            .read(move |tree| {
                needs
                    .into_iter()
                    .find(|(right, thing)| !tree.permitted(&user.name, &name, *right, thing.name()))
            })
            .await?;
        match missing {
            None => Ok(()),
            Some((right, thing)) => Err(ApiError::not_authorised(format!(
                "{} access to {} '{}' in vhost '{vhost}' refused for user '{}'",
                match right {
                    Right::Configure => "configure",
                    Right::Write => "write",
                    Right::Read => "read",
                },
                thing.kind(),
                thing.name(),
                call.user.name
            ))),
        }
    }

    /// Vhosts whose content the user may see; None is all.
    pub(crate) async fn visible_vhosts(
        &self,
        call: &Call,
    ) -> Result<Option<std::collections::BTreeSet<String>>, ApiError> {
        if call.is_administrator() {
            return Ok(None);
        }
        let user = call.user.clone();
        self.read(move |tree| {
            let own = tree.permissions().filter(|p| p.user == user.name);
            Some(own.map(|p| p.vhost.to_string()).collect())
        })
        .await
    }
}

/// A queue or exchange, as error texts call it.
#[derive(Clone, Debug)]
pub(crate) enum ResourceName {
    Queue(String),
    Exchange(String),
}

impl ResourceName {
    fn kind(&self) -> &'static str {
        match self {
            ResourceName::Queue(_) => "queue",
            ResourceName::Exchange(_) => "exchange",
        }
    }

    fn name(&self) -> &str {
        match self {
            ResourceName::Queue(name) | ResourceName::Exchange(name) => name,
        }
    }
}
