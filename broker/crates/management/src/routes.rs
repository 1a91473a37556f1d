//! The table of API routes: method, path, required tag, summary and handler. Requests without a route are
//! rejected, and `/api/openapi.json` is generated from this table.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::bindings::BindingEnds;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::{
    auth_paths, bindings, browse, channels, cluster_health, connections, consumers, definitions,
    exchanges, export, features, health, limits, messages, moves, mqtt, nodes, overview,
    parameters, permissions, policies, queues, recovery, replicas, retained_export, sessions,
    stream_protocol, streams, users, vhosts,
};
use RequiredTag::{Administrator, Login, Management, Monitor, Policymaker, Public};
use metadata::PolicyScope;
use serde_json::{Map, Value as Json, json as object};
use std::pin::Pin;

/// The user tag that a route requires. Handlers check permissions in vhosts in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredTag {
    /// None: the request needs no credentials.
    Public,
    /// Any user.
    Login,
    /// Any tag that grants access to this API.
    Management,
    Policymaker,
    Monitor,
    Administrator,
}

impl RequiredTag {
    pub(crate) fn check(self, call: &AuthenticatedRequest) -> Result<(), ApiError> {
        if !matches!(self, Public | Login) {
            call.require_management()?;
        }
        match self {
            Public | Login | Management => Ok(()),
            Policymaker => call.require_policymaker(),
            Monitor => call.require_monitoring(),
            Administrator => call.require_administrator(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Public => "no credentials",
            Login => "any user",
            Management => "any management tag",
            Policymaker => "tag policymaker or administrator",
            Monitor => "tag monitoring or administrator",
            Administrator => "tag administrator",
        }
    }
}

/// The response of a handler that is still running.
type AnswerFuture<'a> = Pin<Box<dyn Future<Output = ApiResult> + Send + 'a>>;

/// One request of the API.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// The path below `/api`, with parameters in braces.
    pub(crate) path: &'static str,
    pub(crate) required_tag: RequiredTag,
    /// One line for the OpenAPI document.
    pub(crate) summary: &'static str,
    /// Handles a request, with the path's parameters in their order.
    handler: for<'a> fn(&'a Api, &'a AuthenticatedRequest, Vec<&'a str>) -> AnswerFuture<'a>,
}

impl Route {
    /// Handles a request whose path matches and whose user has the required tag.
    pub(crate) async fn handle(
        &self,
        api: &Api,
        call: &AuthenticatedRequest,
        path: &[&str],
    ) -> ApiResult {
        debug_assert!(
            matches(self.path, path),
            "route {} {}: request for {path:?}",
            self.method,
            self.path
        );
        let elements = self.path.split('/').zip(path);
        let parameters = elements.filter(|(element, _)| is_parameter(element));
        let parameters = parameters.map(|(_, value)| *value).collect();
        (self.handler)(api, call, parameters).await
    }
}

/// The number of parameters of a path.
const fn parameter_count(path: &str) -> usize {
    let (bytes, mut at, mut count) = (path.as_bytes(), 0, 0);
    while at < bytes.len() {
        count += (bytes[at] == b'{') as usize;
        at += 1;
    }
    count
}

/// A row of the table: method, path, required tag, summary, and the handler with a name for each parameter
/// of the path.
macro_rules! route {
    ($method:literal, $path:literal, $tag:ident, $summary:literal,
        |$api:pat_param, $call:pat_param, [$($parameter:ident),*]| $answer:expr) => {
        Route {
            method: $method,
            path: $path,
            required_tag: $tag,
            summary: $summary,
            handler: |$api, $call, parameters| {
                const NAMES: &[&str] = &[$(stringify!($parameter)),*];
                const { assert!(parameter_count($path) == NAMES.len()) };
                Box::pin(async move {
                    let &[$($parameter),*] = parameters.as_slice() else {
                        return Err(ApiError::not_found());
                    };
                    $answer
                })
            },
        }
    };
}

#[rustfmt::skip]
pub(crate) const ROUTES: &[Route] = &[
    route!("GET", "overview", Management, "The cluster at a glance: totals, rates, listeners",
        |api, call, []| overview::overview(api, call).await),
    route!("GET", "version", Login, "The RabbitMQ version whose API is implemented",
        |_, _, []| json(overview::RABBITMQ_VERSION.into())),
    route!("GET", "whoami", Login, "The authenticated user",
        |_, call, []| overview::whoami(call)),
    route!("GET", "openapi.json", Management, "This document",
        |api, _, []| json(openapi(api.config().version.version))),
    route!("GET", "cluster-name", Management, "The cluster name",
        |api, _, []| parameters::get_cluster_name(api).await),
    route!("PUT", "cluster-name", Administrator, "Sets the cluster name",
        |api, call, []| parameters::put_cluster_name(api, call).await),
    route!("GET", "extensions", Management, "Extensions of the API",
        |_, _, []| auth_paths::extensions()),
    route!("GET", "auth", Public, "Authentication methods of this API and of the web UI",
        |api, _, []| auth_paths::methods(api).await),
    route!("POST", "oauth/token", Public, "Exchanges a code or a refresh token of the OpenID provider for tokens",
        |api, call, []| auth_paths::oauth_token(api, call).await),
    route!("GET", "auth/attempts/{node}", Monitor, "Login attempts on a node by protocol",
        |api, _, [node]| auth_paths::attempts(api, node).await),
    route!("DELETE", "auth/attempts/{node}", Administrator, "Resets the login attempt counts",
        |api, _, [node]| auth_paths::reset_attempts(api, node).await),
    route!("GET", "auth/hash_password/{password}", Administrator, "Hashes a password for use as password_hash",
        |api, _, [password]| auth_paths::hash_password(api, password).await),
    route!("GET", "feature-flags", Management, "Feature flags and their state",
        |api, _, []| features::list(api).await),
    route!("PUT", "feature-flags/{name}/enable", Administrator, "Enables a feature flag",
        |api, _, [name]| features::enable(api, name).await),
    route!("GET", "deprecated-features", Management, "Deprecated features",
        |api, _, []| features::deprecated(api)),
    route!("GET", "deprecated-features/used", Management, "Deprecated features in use",
        |api, _, []| features::deprecated_in_use(api).await),
    route!("GET", "nodes", Monitor, "Nodes",
        |api, call, []| nodes::list(api, call).await),
    route!("GET", "nodes/{node}", Monitor, "A node",
        |api, call, [node]| nodes::get(api, call, node).await),
    route!("DELETE", "nodes/{node}", Administrator, "Forgets a node that left the cluster",
        |api, call, [node]| nodes::forget(api, call, node).await),
    route!("PUT", "nodes/{node}/maintenance", Administrator, "Puts a node into maintenance mode",
        |api, call, [node]| nodes::maintenance(api, call, node, true).await),
    route!("DELETE", "nodes/{node}/maintenance", Administrator, "Ends the maintenance mode of a node",
        |api, call, [node]| nodes::maintenance(api, call, node, false).await),
    route!("PUT", "nodes/{node}/memory-watermark", Administrator, "Sets the memory high watermark of a node until it restarts",
        |api, call, [node]| nodes::memory_watermark(api, call, node).await),
    route!("PUT", "nodes/{node}/disk-free-limit", Administrator, "Sets the free disk space limit of a node until it restarts",
        |api, call, [node]| nodes::disk_free_limit(api, call, node).await),
    route!("GET", "nodes/{node}/configuration", Administrator, "Settings of a node with their values and sources, without secrets",
        |api, _, [node]| nodes::configuration(api, node).await),
    route!("GET", "nodes/{node}/configuration/keys", Administrator, "Keys of the configuration, with those that a reload applies",
        |api, _, [node]| nodes::configuration_keys(api, node).await),
    route!("POST", "nodes/{node}/configuration/reload", Administrator, "Reads the configuration of a node again and applies live settings",
        |api, call, [node]| nodes::reload(api, call, node).await),
    route!("GET", "nodes/{node}/log-levels", Monitor, "Log levels of a node by category",
        |api, _, [node]| nodes::show_log_levels(api, node).await),
    route!("PUT", "nodes/{node}/log-levels", Administrator, "Sets the log level of one or all categories until the node restarts",
        |api, call, [node]| nodes::set_log_level(api, call, node).await),
    route!("POST", "rebalance/queues", Administrator, "Rebalances queue leaders over the nodes",
        |api, call, []| nodes::rebalance(api, call).await),
    route!("POST", "recovery/majority", Administrator, "Does a step of the recovery after most nodes are lost",
        |api, call, []| recovery::majority(api, call).await),
    route!("GET", "definitions", Administrator, "Exports the definitions of the cluster",
        |api, call, []| definitions::export(api, call, None).await),
    route!("POST", "definitions", Administrator, "Imports definitions",
        |api, call, []| definitions::import(api, call, None).await),
    route!("PUT", "definitions", Administrator, "Imports definitions",
        |api, call, []| definitions::import(api, call, None).await),
    route!("GET", "definitions/{vhost}", Administrator, "Exports the definitions of a vhost",
        |api, call, [vhost]| definitions::export(api, call, Some(vhost)).await),
    route!("POST", "definitions/{vhost}", Administrator, "Imports definitions into a vhost",
        |api, call, [vhost]| definitions::import(api, call, Some(vhost)).await),
    route!("PUT", "definitions/{vhost}", Administrator, "Imports definitions into a vhost",
        |api, call, [vhost]| definitions::import(api, call, Some(vhost)).await),
    route!("GET", "parameters", Policymaker, "Parameters of vhosts",
        |api, call, []| parameters::list(api, call, None, None).await),
    route!("GET", "parameters/{component}", Policymaker, "Parameters of one component",
        |api, call, [component]| parameters::list(api, call, Some(component), None).await),
    route!("GET", "parameters/{component}/{vhost}", Policymaker, "Parameters of one component in a vhost",
        |api, call, [component, vhost]| parameters::list(api, call, Some(component), Some(vhost)).await),
    route!("GET", "parameters/{component}/{vhost}/{name}", Policymaker, "A parameter",
        |api, call, [component, vhost, name]| parameters::get(api, call, component, vhost, name).await),
    route!("PUT", "parameters/{component}/{vhost}/{name}", Policymaker, "Sets a parameter",
        |api, call, [component, vhost, name]| parameters::put(api, call, component, vhost, name).await),
    route!("DELETE", "parameters/{component}/{vhost}/{name}", Policymaker, "Clears a parameter",
        |api, call, [component, vhost, name]| parameters::delete(api, call, component, vhost, name).await),
    route!("GET", "global-parameters", Policymaker, "Global parameters",
        |api, _, []| parameters::list_globals(api).await),
    route!("GET", "global-parameters/{name}", Policymaker, "A global parameter",
        |api, _, [name]| parameters::get_global(api, name).await),
    route!("PUT", "global-parameters/{name}", Administrator, "Sets a global parameter",
        |api, call, [name]| parameters::put_global(api, call, name).await),
    route!("DELETE", "global-parameters/{name}", Administrator, "Clears a global parameter",
        |api, _, [name]| parameters::delete_global(api, name).await),
    route!("GET", "connections", Management, "Client connections",
        |api, call, []| connections::list(api, call, None).await),
    route!("GET", "connections/{connection}", Management, "A connection",
        |api, call, [connection]| connections::get(api, call, connection).await),
    route!("DELETE", "connections/{connection}", Management, "Closes a connection with the reason in X-Reason",
        |api, call, [connection]| connections::close(api, call, connection).await),
    route!("GET", "connections/{connection}/channels", Management, "Channels of a connection",
        |api, call, [connection]| channels::of_connection(api, call, connection).await),
    route!("GET", "connections/{connection}/sessions", Management, "Sessions and links of an AMQP 1.0 connection",
        |api, call, [connection]| sessions::list(api, call, connection).await),
    route!("GET", "connections/username/{user}", Management, "Connections of a user",
        |api, call, [user]| connections::of_user(api, call, user).await),
    route!("DELETE", "connections/username/{user}", Management, "Closes all connections of a user",
        |api, call, [user]| connections::close_of_user(api, call, user).await),
    route!("GET", "mqtt/connections", Management, "Connections of MQTT clients",
        |api, call, []| mqtt::list_connections(api, call, None).await),
    route!("GET", "mqtt/connections/{vhost}", Management, "Connections of MQTT clients in a virtual host",
        |api, call, [vhost]| mqtt::list_connections(api, call, Some(vhost)).await),
    route!("GET", "mqtt/retained/{vhost}/export", Administrator, "Retained MQTT messages of a virtual host as records: cursor",
        |api, call, [vhost]| retained_export::export(api, call, vhost).await),
    route!("POST", "mqtt/retained/{vhost}/import", Administrator, "Stores retained MQTT messages of an export, except for topics that have one",
        |api, call, [vhost]| retained_export::import(api, call, vhost).await),
    route!("GET", "mqtt/nodes", Monitor, "MQTT sessions, subscriptions and retained messages of each node",
        |api, _, []| mqtt::list_nodes(api).await),
    route!("GET", "stream/connections", Management, "Connections of the stream protocol",
        |api, call, []| stream_protocol::list_connections(api, call, None).await),
    route!("GET", "stream/connections/{vhost}", Management, "Connections of the stream protocol in a vhost",
        |api, call, [vhost]| stream_protocol::list_connections(api, call, Some(vhost)).await),
    route!("GET", "stream/connections/{vhost}/{connection}", Management, "A connection of the stream protocol",
        |api, call, [vhost, connection]| stream_protocol::get_connection(api, call, vhost, connection).await),
    route!("DELETE", "stream/connections/{vhost}/{connection}", Management, "Closes a connection with the reason in X-Reason",
        |api, call, [vhost, connection]| stream_protocol::close_connection(api, call, vhost, connection).await),
    route!("GET", "stream/connections/{vhost}/{connection}/publishers", Management, "Stream publishers of a connection",
        |api, call, [vhost, connection]| stream_protocol::connection_publishers(api, call, vhost, connection).await),
    route!("GET", "stream/connections/{vhost}/{connection}/consumers", Management, "Stream consumers of a connection",
        |api, call, [vhost, connection]| stream_protocol::connection_consumers(api, call, vhost, connection).await),
    route!("GET", "stream/publishers", Management, "Stream publishers",
        |api, call, []| stream_protocol::list_publishers(api, call, None, None).await),
    route!("GET", "stream/publishers/{vhost}", Management, "Stream publishers of a vhost",
        |api, call, [vhost]| stream_protocol::list_publishers(api, call, Some(vhost), None).await),
    route!("GET", "stream/publishers/{vhost}/{stream}", Management, "Publishers of a stream",
        |api, call, [vhost, stream]| stream_protocol::list_publishers(api, call, Some(vhost), Some(stream)).await),
    route!("GET", "stream/consumers", Management, "Stream consumers",
        |api, call, []| stream_protocol::list_consumers(api, call, None).await),
    route!("GET", "stream/consumers/{vhost}", Management, "Stream consumers of a vhost",
        |api, call, [vhost]| stream_protocol::list_consumers(api, call, Some(vhost)).await),
    route!("GET", "stream/super-streams", Management, "Super streams",
        |api, call, []| streams::list_super_streams(api, call, None).await),
    route!("GET", "stream/super-streams/{vhost}", Management, "Super streams of a vhost",
        |api, call, [vhost]| streams::list_super_streams(api, call, Some(vhost)).await),
    route!("PUT", "stream/super-streams/{vhost}/{name}", Management, "Creates a super stream with its partitions",
        |api, call, [vhost, name]| streams::create_super_stream(api, call, vhost, name).await),
    route!("DELETE", "stream/super-streams/{vhost}/{name}", Management, "Deletes a super stream with its partitions",
        |api, call, [vhost, name]| streams::delete_super_stream(api, call, vhost, name).await),
    route!("GET", "stream/{vhost}/{stream}/tracking", Management, "Stored offsets and publishing ids of a stream",
        |api, call, [vhost, stream]| streams::tracking(api, call, vhost, stream).await),
    route!("DELETE", "stream/{vhost}/{stream}/tracking/{reference}", Management, "Resets the stored offset of a consumer to 0",
        |api, call, [vhost, stream, reference]| streams::reset_offset(api, call, vhost, stream, reference).await),
    route!("GET", "stream/{vhost}/{stream}/status", Management, "Replicas of a stream",
        |api, call, [vhost, stream]| streams::status(api, call, vhost, stream).await),
    route!("GET", "channels", Management, "Channels",
        |api, call, []| channels::list(api, call, None).await),
    route!("GET", "channels/{channel}", Management, "A channel",
        |api, call, [channel]| channels::get(api, call, channel).await),
    route!("GET", "consumers", Management, "Consumers",
        |api, call, []| consumers::list(api, call, None).await),
    route!("GET", "consumers/{vhost}", Management, "Consumers of a vhost",
        |api, call, [vhost]| consumers::list(api, call, Some(vhost)).await),
    route!("GET", "exchanges", Management, "Exchanges",
        |api, call, []| exchanges::list(api, call, None).await),
    route!("GET", "exchanges/{vhost}", Management, "Exchanges of a vhost",
        |api, call, [vhost]| exchanges::list(api, call, Some(vhost)).await),
    route!("GET", "exchanges/{vhost}/{exchange}", Management, "An exchange",
        |api, call, [vhost, exchange]| exchanges::get(api, call, vhost, exchange).await),
    route!("PUT", "exchanges/{vhost}/{exchange}", Management, "Declares an exchange",
        |api, call, [vhost, exchange]| exchanges::declare(api, call, vhost, exchange).await),
    route!("DELETE", "exchanges/{vhost}/{exchange}", Management, "Deletes an exchange",
        |api, call, [vhost, exchange]| exchanges::delete(api, call, vhost, exchange).await),
    route!("GET", "exchanges/{vhost}/{exchange}/bindings/source", Management, "Bindings with this exchange as source",
        |api, call, [vhost, exchange]| bindings::of_exchange(api, call, vhost, exchange, true).await),
    route!("GET", "exchanges/{vhost}/{exchange}/bindings/destination", Management, "Bindings with this exchange as destination",
        |api, call, [vhost, exchange]| bindings::of_exchange(api, call, vhost, exchange, false).await),
    route!("POST", "exchanges/{vhost}/{exchange}/publish", Management, "Publishes a message and waits for its confirmation",
        |api, call, [vhost, exchange]| messages::publish(api, call, vhost, exchange).await),
    route!("GET", "queues", Management, "Queues",
        |api, call, []| queues::list(api, call, None).await),
    route!("GET", "queues/detailed", Management, "Queues with all details",
        |api, call, []| queues::list(api, call, None).await),
    route!("GET", "queues/{vhost}", Management, "Queues of a vhost",
        |api, call, [vhost]| queues::list(api, call, Some(vhost)).await),
    route!("GET", "queues/{vhost}/{queue}", Management, "A queue",
        |api, call, [vhost, queue]| queues::get(api, call, vhost, queue).await),
    route!("PUT", "queues/{vhost}/{queue}", Management, "Declares a queue",
        |api, call, [vhost, queue]| queues::declare(api, call, vhost, queue).await),
    route!("DELETE", "queues/{vhost}/{queue}", Management, "Deletes a queue",
        |api, call, [vhost, queue]| queues::delete(api, call, vhost, queue).await),
    route!("DELETE", "queues/{vhost}/{queue}/contents", Management, "Purges a queue",
        |api, call, [vhost, queue]| queues::purge(api, call, vhost, queue).await),
    route!("GET", "queues/quorum/{vhost}/{queue}/status", Management, "Replicas of a quorum queue",
        |api, call, [vhost, queue]| replicas::status(api, call, vhost, queue).await),
    route!("POST", "queues/quorum/{vhost}/{queue}/replicas/add", Administrator, "Adds a member to a quorum queue",
        |api, call, [vhost, queue]| replicas::add(api, call, vhost, queue).await),
    route!("DELETE", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "Removes a member from a quorum queue",
        |api, call, [vhost, queue]| replicas::remove(api, call, vhost, queue).await),
    route!("POST", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "Removes a member from a quorum queue, for clients whose DELETE has no body",
        |api, call, [vhost, queue]| replicas::remove(api, call, vhost, queue).await),
    route!("POST", "queues/quorum/{vhost}/{queue}/replicas/replace", Administrator, "Replaces a member of a quorum queue",
        |api, call, [vhost, queue]| replicas::replace(api, call, vhost, queue).await),
    route!("POST", "queues/quorum/replicas/on/{node}/grow", Administrator, "Adds replicas of quorum queues on a node",
        |api, call, [node]| replicas::grow(api, call, node).await),
    route!("DELETE", "queues/quorum/replicas/on/{node}/shrink", Administrator, "Removes replicas of quorum queues from a node",
        |api, call, [node]| replicas::shrink(api, call, node).await),
    route!("POST", "queues/quorum/replicas/on/{node}/shrink", Administrator, "Removes replicas of quorum queues from a node",
        |api, call, [node]| replicas::shrink(api, call, node).await),
    route!("POST", "queues/quorum/replicas/on/{node}/evacuate", Administrator, "Moves replicas of quorum queues from a node to other nodes",
        |api, call, [node]| replicas::evacuate(api, call, node).await),
    route!("GET", "queues/{vhost}/{queue}/bindings", Management, "Bindings of a queue",
        |api, call, [vhost, queue]| bindings::of_queue(api, call, vhost, queue).await),
    route!("POST", "queues/{vhost}/{queue}/actions", Administrator, "Actions of RabbitMQ's mirrored queues: none is supported",
        |api, call, [vhost, queue]| queues::reject_action(api, call, vhost, queue).await),
    route!("GET", "queues/{vhost}/{queue}/messages", Management, "Messages of a queue, which are not consumed: count, cursor, position, state, truncate, encoding",
        |api, call, [vhost, queue]| browse::list(api, call, vhost, queue).await),
    route!("DELETE", "queues/{vhost}/{queue}/messages", Management, "Deletes the delayed messages with a message id: message_id, state=delayed, cursor",
        |api, call, [vhost, queue]| moves::cancel(api, call, vhost, queue).await),
    route!("DELETE", "queues/{vhost}/{queue}/messages/{position}", Management, "Deletes a ready or delayed message",
        |api, call, [vhost, queue, position]| moves::delete(api, call, vhost, queue, position).await),
    route!("GET", "queues/{vhost}/{queue}/messages/export", Administrator, "Whole messages of a queue or stream as records, which are not consumed: cursor, count",
        |api, call, [vhost, queue]| export::export(api, call, vhost, queue).await),
    route!("POST", "queues/{vhost}/{queue}/messages/import", Administrator, "Stores messages of an export in a queue or stream: next_offset",
        |api, call, [vhost, queue]| export::import(api, call, vhost, queue).await),
    route!("POST", "queues/{vhost}/{queue}/messages/move", Management, "Moves messages to another queue or exchange of the virtual host",
        |api, call, [vhost, queue]| moves::move_messages(api, call, vhost, queue).await),
    route!("POST", "queues/{vhost}/{queue}/messages/redrive", Management, "Sends dead letters back to the queues where they died first",
        |api, call, [vhost, queue]| moves::redrive(api, call, vhost, queue).await),
    route!("POST", "queues/{vhost}/{queue}/get", Management, "Gets messages from the head of a queue",
        |api, call, [vhost, queue]| messages::get(api, call, vhost, queue).await),
    route!("GET", "bindings", Management, "Bindings",
        |api, call, []| bindings::list(api, call, None).await),
    route!("GET", "bindings/{vhost}", Management, "Bindings of a vhost",
        |api, call, [vhost]| bindings::list(api, call, Some(vhost)).await),
    route!("GET", "bindings/{vhost}/e/{source}/q/{destination}", Management, "Bindings between an exchange and a queue",
        |api, call, [vhost, source, destination]| bindings::between(api, call, &BindingEnds::new(vhost, source, "q", destination)).await),
    route!("POST", "bindings/{vhost}/e/{source}/q/{destination}", Management, "Binds a queue",
        |api, call, [vhost, source, destination]| bindings::bind(api, call, &BindingEnds::new(vhost, source, "q", destination)).await),
    route!("GET", "bindings/{vhost}/e/{source}/q/{destination}/{key}", Management, "A binding",
        |api, call, [vhost, source, destination, key]| bindings::get(api, call, &BindingEnds::new(vhost, source, "q", destination), key).await),
    route!("DELETE", "bindings/{vhost}/e/{source}/q/{destination}/{key}", Management, "Unbinds a queue",
        |api, call, [vhost, source, destination, key]| bindings::unbind(api, call, &BindingEnds::new(vhost, source, "q", destination), key).await),
    route!("GET", "bindings/{vhost}/e/{source}/e/{destination}", Management, "Bindings between two exchanges",
        |api, call, [vhost, source, destination]| bindings::between(api, call, &BindingEnds::new(vhost, source, "e", destination)).await),
    route!("POST", "bindings/{vhost}/e/{source}/e/{destination}", Management, "Binds an exchange",
        |api, call, [vhost, source, destination]| bindings::bind(api, call, &BindingEnds::new(vhost, source, "e", destination)).await),
    route!("GET", "bindings/{vhost}/e/{source}/e/{destination}/{key}", Management, "A binding",
        |api, call, [vhost, source, destination, key]| bindings::get(api, call, &BindingEnds::new(vhost, source, "e", destination), key).await),
    route!("DELETE", "bindings/{vhost}/e/{source}/e/{destination}/{key}", Management, "Unbinds an exchange",
        |api, call, [vhost, source, destination, key]| bindings::unbind(api, call, &BindingEnds::new(vhost, source, "e", destination), key).await),
    route!("GET", "policies", Management, "Policies",
        |api, call, []| policies::list(api, call, PolicyScope::User, None).await),
    route!("GET", "policies/{vhost}", Management, "Policies of a vhost",
        |api, call, [vhost]| policies::list(api, call, PolicyScope::User, Some(vhost)).await),
    route!("GET", "policies/{vhost}/{name}", Management, "A policy",
        |api, call, [vhost, name]| policies::get(api, call, PolicyScope::User, vhost, name).await),
    route!("PUT", "policies/{vhost}/{name}", Policymaker, "Creates or replaces a policy",
        |api, call, [vhost, name]| policies::put(api, call, PolicyScope::User, vhost, name).await),
    route!("DELETE", "policies/{vhost}/{name}", Policymaker, "Deletes a policy",
        |api, call, [vhost, name]| policies::delete(api, call, PolicyScope::User, vhost, name).await),
    route!("GET", "operator-policies", Management, "Operator policies",
        |api, call, []| policies::list(api, call, PolicyScope::Operator, None).await),
    route!("GET", "operator-policies/{vhost}", Management, "Operator policies of a vhost",
        |api, call, [vhost]| policies::list(api, call, PolicyScope::Operator, Some(vhost)).await),
    route!("GET", "operator-policies/{vhost}/{name}", Management, "An operator policy",
        |api, call, [vhost, name]| policies::get(api, call, PolicyScope::Operator, vhost, name).await),
    route!("PUT", "operator-policies/{vhost}/{name}", Administrator, "Creates or replaces an operator policy",
        |api, call, [vhost, name]| policies::put(api, call, PolicyScope::Operator, vhost, name).await),
    route!("DELETE", "operator-policies/{vhost}/{name}", Administrator, "Deletes an operator policy",
        |api, call, [vhost, name]| policies::delete(api, call, PolicyScope::Operator, vhost, name).await),
    route!("GET", "vhosts", Management, "Virtual hosts",
        |api, call, []| vhosts::list(api, call).await),
    route!("GET", "vhosts/{vhost}", Management, "A virtual host",
        |api, call, [vhost]| vhosts::get(api, call, vhost).await),
    route!("PUT", "vhosts/{vhost}", Administrator, "Creates or changes a virtual host",
        |api, call, [vhost]| vhosts::put(api, call, vhost).await),
    route!("DELETE", "vhosts/{vhost}", Administrator, "Deletes a virtual host and its contents",
        |api, call, [vhost]| vhosts::delete(api, call, vhost).await),
    route!("POST", "vhosts/{vhost}/start/{node}", Administrator, "Starts a virtual host on a node; without effect, because it runs on every node",
        |api, _, [vhost, node]| vhosts::start(api, vhost, node).await),
    route!("POST", "vhosts/{vhost}/deletion/protection", Administrator, "Protects a virtual host from deletion",
        |api, _, [vhost]| vhosts::protect(api, vhost, true).await),
    route!("DELETE", "vhosts/{vhost}/deletion/protection", Administrator, "Removes the deletion protection",
        |api, _, [vhost]| vhosts::protect(api, vhost, false).await),
    route!("GET", "vhosts/{vhost}/permissions", Administrator, "Permissions in a virtual host",
        |api, call, [vhost]| permissions::of_vhost(api, call, vhost).await),
    route!("GET", "vhosts/{vhost}/topic-permissions", Administrator, "Topic permissions in a virtual host",
        |api, call, [vhost]| permissions::topics_of_vhost(api, call, vhost).await),
    route!("GET", "vhosts/{vhost}/connections", Management, "Connections to a virtual host",
        |api, call, [vhost]| connections::list(api, call, Some(vhost)).await),
    route!("GET", "vhosts/{vhost}/channels", Management, "Channels in a virtual host",
        |api, call, [vhost]| channels::list(api, call, Some(vhost)).await),
    route!("GET", "vhost-limits", Management, "Limits of virtual hosts",
        |api, call, []| limits::list(api, call, None).await),
    route!("GET", "vhost-limits/{vhost}", Management, "Limits of a virtual host",
        |api, call, [vhost]| limits::list(api, call, Some(vhost)).await),
    route!("PUT", "vhost-limits/{vhost}/{limit}", Administrator, "Sets max-connections, max-queues, max-channels, max-message-rate, max-byte-rate or max-stored-bytes",
        |api, call, [vhost, limit]| limits::set(api, call, vhost, limit).await),
    route!("DELETE", "vhost-limits/{vhost}/{limit}", Administrator, "Clears a limit",
        |api, _, [vhost, limit]| limits::clear(api, vhost, limit).await),
    route!("GET", "users", Administrator, "Users",
        |api, call, []| users::list(api, call).await),
    route!("GET", "users/without-permissions", Administrator, "Users without permissions in any virtual host",
        |api, call, []| users::without_permissions(api, call).await),
    route!("POST", "users/bulk-delete", Administrator, "Deletes several users",
        |api, call, []| users::bulk_delete(api, call).await),
    route!("GET", "users/{user}", Administrator, "A user",
        |api, call, [user]| users::get(api, call, user).await),
    route!("PUT", "users/{user}", Administrator, "Creates or changes a user",
        |api, call, [user]| users::put(api, call, user).await),
    route!("DELETE", "users/{user}", Administrator, "Deletes a user",
        |api, call, [user]| users::delete(api, call, user).await),
    route!("GET", "users/{user}/permissions", Administrator, "Permissions of a user",
        |api, call, [user]| permissions::of_user(api, call, user).await),
    route!("GET", "users/{user}/topic-permissions", Administrator, "Topic permissions of a user",
        |api, call, [user]| permissions::topics_of_user(api, call, user).await),
    route!("GET", "user-limits", Management, "Limits of users",
        |api, _, []| users::limits(api, None).await),
    route!("GET", "user-limits/{user}", Management, "Limits of a user",
        |api, _, [user]| users::limits(api, Some(user)).await),
    route!("PUT", "user-limits/{user}/{limit}", Administrator, "Sets max-connections, max-channels, max-message-rate or max-byte-rate",
        |api, call, [user, limit]| users::set_limit(api, call, user, limit).await),
    route!("DELETE", "user-limits/{user}/{limit}", Administrator, "Clears a limit",
        |api, _, [user, limit]| users::clear_limit(api, user, limit).await),
    route!("GET", "permissions", Administrator, "Permissions of all users",
        |api, call, []| permissions::list(api, call).await),
    route!("GET", "permissions/{vhost}/{user}", Administrator, "Permissions of a user in a virtual host",
        |api, _, [vhost, user]| permissions::get(api, vhost, user).await),
    route!("PUT", "permissions/{vhost}/{user}", Administrator, "Sets permissions of a user in a virtual host",
        |api, call, [vhost, user]| permissions::put(api, call, vhost, user).await),
    route!("DELETE", "permissions/{vhost}/{user}", Administrator, "Clears permissions of a user in a virtual host",
        |api, _, [vhost, user]| permissions::delete(api, vhost, user).await),
    route!("GET", "topic-permissions", Administrator, "Topic permissions of all users",
        |api, call, []| permissions::topics(api, call).await),
    route!("GET", "topic-permissions/{vhost}/{user}", Administrator, "Topic permissions of a user in a virtual host",
        |api, call, [vhost, user]| permissions::get_topics(api, call, vhost, user).await),
    route!("PUT", "topic-permissions/{vhost}/{user}", Administrator, "Sets topic permissions of a user for an exchange",
        |api, call, [vhost, user]| permissions::put_topic(api, call, vhost, user).await),
    route!("DELETE", "topic-permissions/{vhost}/{user}", Administrator, "Clears all topic permissions of a user in a virtual host",
        |api, _, [vhost, user]| permissions::delete_topics(api, vhost, user, None).await),
    route!("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", Administrator, "Clears topic permissions of a user for an exchange",
        |api, _, [vhost, user, exchange]| permissions::delete_topics(api, vhost, user, Some(exchange)).await),
    route!("GET", "aliveness-test/{vhost}", Management, "Checks that the node is ready to serve clients",
        |api, call, [vhost]| health::aliveness(api, call, vhost).await),
    route!("GET", "healthchecks/node", Management, "Checks that the node responds; kept for old clients",
        |_, _, []| health::ok()),
    route!("GET", "health/checks/alarms", Management, "Alarms in the cluster",
        |api, _, []| health::alarms(api, false).await),
    route!("GET", "health/checks/local-alarms", Management, "Alarms of this node",
        |api, _, []| health::alarms(api, true).await),
    route!("GET", "health/checks/port-listener/{port}", Management, "Checks that this node listens on a port",
        |api, _, [port]| health::port_listener(api, port)),
    route!("GET", "health/checks/protocol-listener/{protocol}", Management, "Checks that this node has a listener for a protocol",
        |api, _, [protocol]| health::protocol_listener(api, protocol)),
    route!("GET", "health/checks/virtual-hosts", Management, "Checks that all virtual hosts are usable",
        |_, _, []| health::ok()),
    route!("GET", "health/checks/node-is-quorum-critical", Monitor, "Checks that no quorum queue would lose its quorum without this node",
        |api, _, []| health::quorum_critical(api).await),
    route!("GET", "health/checks/lost-queues", Monitor, "Queues whose only copy was on a node that lost its data directory",
        |api, _, []| health::lost_queues(api).await),
    route!("GET", "health/checks/ready-to-serve-clients", Management, "Checks that the node is ready to serve clients, as /readyz",
        |api, _, []| health::readyz(api).await),
    route!("GET", "health/checks/is-in-service", Management, "Checks that the node is ready to serve clients, as /readyz",
        |api, _, []| health::readyz(api).await),
    route!("GET", "health/checks/below-node-connection-limit", Management, "Checks that the node has fewer client connections than it may have",
        |api, _, []| cluster_health::below_connection_limit(api).await),
    route!("GET", "health/checks/reached-target-cluster-size", Management, "Checks that at least as many nodes run as form the cluster",
        |api, _, []| cluster_health::reached_target_size(api).await),
    route!("GET", "health/checks/metadata-store/initialized", Management, "Checks that the node has the metadata of the cluster",
        |api, _, []| cluster_health::metadata_initialized(api, false).await),
    route!("GET", "health/checks/metadata-store/initialized/with-data", Management, "Checks that the metadata has a virtual host and a user",
        |api, _, []| cluster_health::metadata_initialized(api, true).await),
    route!("GET", "health/checks/quorum-queues-without-elected-leaders/all-vhosts", Management, "Checks that all quorum queues have a leader",
        |api, call, []| cluster_health::queues_without_leaders(api, call, None, "").await),
    route!("GET", "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}", Management, "Checks that quorum queues whose names match have a leader",
        |api, call, [pattern]| cluster_health::queues_without_leaders(api, call, None, pattern).await),
    route!("GET", "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}", Management, "Checks that all quorum queues of a virtual host have a leader",
        |api, call, [vhost]| cluster_health::queues_without_leaders(api, call, Some(vhost), "").await),
    route!("GET", "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}", Management, "Checks that quorum queues of a virtual host whose names match have a leader",
        |api, call, [vhost, pattern]| cluster_health::queues_without_leaders(api, call, Some(vhost), pattern).await),
    route!("GET", "health/checks/certificate-expiration/{within}/{unit}", Management, "Checks for certificates that expire within a period",
        |api, _, [within, unit]| health::certificates(api, within, unit)),
];

fn is_parameter(element: &str) -> bool {
    element.starts_with('{')
}

fn matches(pattern: &str, path: &[&str]) -> bool {
    let mut pattern = pattern.split('/');
    for element in path {
        match pattern.next() {
            Some(expected) if is_parameter(expected) || expected == *element => {}
            _ => return false,
        }
    }
    pattern.next().is_none()
}

/// The number of literal elements of a pattern.
fn literal_count(pattern: &str) -> usize {
    pattern.split('/').filter(|e| !is_parameter(e)).count()
}

/// Finds the route of a request: 404 if the path does not exist, 405 if it does not support the
/// method. Among matching routes, the one with the most literal elements wins: `users/bulk-delete`
/// is not a user.
pub(crate) fn find(method: &str, path: &[&str]) -> Result<&'static Route, ApiError> {
    let candidates = || ROUTES.iter().filter(|route| matches(route.path, path));
    let best = candidates().filter(|route| route.method == method);
    match best.max_by_key(|route| literal_count(route.path)) {
        Some(route) => Ok(route),
        None if candidates().next().is_some() => Err(ApiError::method()),
        None => Err(ApiError::not_found()),
    }
}

/// Finds the route of a request that needs no credentials.
pub(crate) fn find_public(method: &str, path: &[&str]) -> Option<&'static Route> {
    let found = find(method, path).ok()?;
    (found.required_tag == Public).then_some(found)
}

/// The methods of a path for the `Allow` header (RFC 9110, 10.2.1). None if the path does not
/// exist.
pub(crate) fn allowed_methods(path: &[&str]) -> Option<String> {
    let mut methods: Vec<&str> = Vec::new();
    for route in ROUTES.iter().filter(|route| matches(route.path, path)) {
        if route.method == "GET" && !methods.contains(&"HEAD") {
            methods.push("HEAD");
        }
        if !methods.contains(&route.method) {
            methods.push(route.method);
        }
    }
    if methods.is_empty() {
        return None;
    }
    methods.push("OPTIONS");
    Some(methods.join(", "))
}

/// Renders the table as an OpenAPI 3.1 document.
pub(crate) fn openapi(version: &str) -> Json {
    let mut paths = Map::new();
    for route in ROUTES {
        let (method, path) = (route.method, route.path);
        let parameters = path.split('/').filter_map(|element| {
            let name = element.strip_prefix('{')?.strip_suffix('}')?;
            Some(
                object!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
            )
        });
        let mut operation = object!({
            "summary": route.summary,
            "description": format!("Needs: {}.", route.required_tag.description()),
            "parameters": parameters.collect::<Vec<_>>(),
            "responses": responses(),
        });
        if matches!(method, "PUT" | "POST") {
            operation["requestBody"] = object!({
                "required": false,
                "content": {"application/json": {"schema": {"type": "object"}}},
            });
        }
        if route.required_tag == Public {
            operation["security"] = object!([]);
        }
        let at = paths
            .entry(format!("/api/{path}"))
            .or_insert_with(|| object!({}));
        at[method.to_lowercase()] = operation;
    }
    object!({
        "openapi": "3.1.0",
        "info": {"title": "Posthorn management API", "version": version},
        "security": [{"basic": []}, {"bearer": []}],
        "components": {
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
            "schemas": {"Error": {
                "type": "object",
                "required": ["error", "reason"],
                "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
            }},
        },
        "paths": paths,
    })
}

/// The responses that any path may return.
fn responses() -> Json {
    let error = |text: &str| {
        object!({"description": text, "content": {"application/json": {
            "schema": {"$ref": "#/components/schemas/Error"},
        }}})
    };
    object!({
        "200": {"description": "The requested object", "content": {"application/json": {}}},
        "201": {"description": "Created"},
        "202": {"description": "Accepted; the change is in progress", "content": {"application/json": {}}},
        "204": {"description": "Done"},
        "400": error("The request is invalid"),
        "401": error("Not authenticated, or not authorized"),
        "404": error("The object does not exist"),
        "405": {"description": "The path does not support the method"},
        "412": error("The state of the object does not allow the request"),
        "413": error("The body is too large"),
        "403": error("The request was sent by a page of another site"),
        "503": {"description": "Temporarily unavailable, or a failed health check", "content": {"application/json": {}}},
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn most_specific_route_wins() {
        let of = |method, path: &str| {
            let path: Vec<&str> = path.split('/').collect();
            find(method, &path).map(|route| route.path)
        };
        assert_eq!(of("GET", "users/bob"), Ok("users/{user}"));
        assert_eq!(of("POST", "users/bulk-delete"), Ok("users/bulk-delete"));
        assert_eq!(
            of("GET", "users/without-permissions"),
            Ok("users/without-permissions")
        );
        assert_eq!(
            of("GET", "connections/username/bob"),
            Ok("connections/username/{user}")
        );
        assert_eq!(
            of("GET", "connections/x/channels"),
            Ok("connections/{connection}/channels")
        );
        assert_eq!(of("POST", "whoami"), Err(ApiError::method()));
        assert_eq!(of("GET", "whoami/now"), Err(ApiError::not_found()));
        assert_eq!(of("GET", "nothing"), Err(ApiError::not_found()));
    }

    #[test]
    fn allowed_methods_of_a_path_are_listed() {
        let of = |path: &str| allowed_methods(&path.split('/').collect::<Vec<_>>());
        assert_eq!(of("overview").as_deref(), Some("HEAD, GET, OPTIONS"));
        assert_eq!(
            of("queues/a/b").as_deref(),
            Some("HEAD, GET, PUT, DELETE, OPTIONS")
        );
        assert_eq!(of("queues/a/b/get").as_deref(), Some("POST, OPTIONS"));
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn routes_are_unique() {
        for (at, Route { method, path, .. }) in ROUTES.iter().enumerate() {
            let is_duplicate = ROUTES[..at]
                .iter()
                .any(|other| (&other.method, &other.path) == (method, path));
            assert!(!is_duplicate, "{method} {path}");
        }
    }
}
