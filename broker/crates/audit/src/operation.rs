//! The operations of audit records.

/// Defines the operations with their names and descriptions.
macro_rules! operations {
    ($($variant:ident = $name:literal, $doc:literal;)*) => {
        /// An operation that is recorded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            $(#[doc = $doc] $variant,)*
        }

        impl Operation {
            /// All operations, in the order of the reference.
            pub const ALL: &[Operation] = &[$(Operation::$variant),*];

            /// The name in records.
            pub fn name(self) -> &'static str {
                match self {
                    $(Operation::$variant => $name,)*
                }
            }

            /// One sentence for the reference.
            pub fn description(self) -> &'static str {
                match self {
                    $(Operation::$variant => $doc,)*
                }
            }
        }
    };
}

operations! {
    Login = "login", "A login, accepted or refused.";
    VhostOpen = "vhost.open", "A refused access to a virtual host.";
    PermissionCheck = "permission.check", "A refused permission on a queue, an exchange, a topic or a path of the HTTP API.";
    ExchangeDeclare = "exchange.declare", "A declaration that creates an exchange.";
    ExchangeDelete = "exchange.delete", "A deletion of an exchange.";
    QueueDeclare = "queue.declare", "A declaration that creates a queue or stream.";
    QueueDelete = "queue.delete", "A deletion of a queue or stream.";
    QueuePurge = "queue.purge", "A purge of a queue.";
    QueueChangeMembers = "queue.change_members", "A change of the members of quorum queues or streams.";
    QueueRebalance = "queue.rebalance", "A rebalancing of queue leaders.";
    QueueAction = "queue.action", "An action of RabbitMQ's mirrored queues, which is refused.";
    SuperStreamCreate = "super_stream.create", "A super stream created over HTTP.";
    SuperStreamDelete = "super_stream.delete", "A super stream deleted over HTTP.";
    StreamResetOffset = "stream.reset_offset", "A reset of a stored offset.";
    BindingCreate = "binding.create", "A new binding.";
    BindingDelete = "binding.delete", "A removed binding.";
    MessagePublish = "message.publish", "A message published over HTTP.";
    MessageGet = "message.get", "Messages got over HTTP.";
    MessageDelete = "message.delete", "A message deleted from a queue over HTTP.";
    MessageExport = "message.export", "Whole messages of a queue, or retained messages, read over HTTP, as for a backup.";
    MessageImport = "message.import", "Messages of a backup stored in a queue, or as retained messages, over HTTP.";
    MessageMove = "message.move", "Messages moved from a queue to an exchange or another queue.";
    MessageRedrive = "message.redrive", "Dead letters sent back to the queues where they died first.";
    UserPut = "user.put", "A user created or changed.";
    UserDelete = "user.delete", "A user deleted.";
    UserLimitSet = "user_limit.set", "A limit of a user set.";
    UserLimitClear = "user_limit.clear", "A limit of a user cleared.";
    PermissionPut = "permission.put", "Permissions of a user set.";
    PermissionDelete = "permission.delete", "Permissions of a user cleared.";
    TopicPermissionPut = "topic_permission.put", "Topic permissions of a user set.";
    TopicPermissionDelete = "topic_permission.delete", "Topic permissions of a user cleared.";
    VhostPut = "vhost.put", "A virtual host created or changed.";
    VhostDelete = "vhost.delete", "A virtual host deleted.";
    VhostStart = "vhost.start", "A request to start a virtual host, which has no effect.";
    VhostProtect = "vhost.protect", "A virtual host protected from deletion.";
    VhostUnprotect = "vhost.unprotect", "The protection from deletion removed.";
    VhostTrace = "vhost.trace", "The firehose tracer of a virtual host switched.";
    VhostLimitSet = "vhost_limit.set", "A limit of a virtual host set.";
    VhostLimitClear = "vhost_limit.clear", "A limit of a virtual host cleared.";
    PolicyPut = "policy.put", "A policy set.";
    PolicyDelete = "policy.delete", "A policy deleted.";
    OperatorPolicyPut = "operator_policy.put", "An operator policy set.";
    OperatorPolicyDelete = "operator_policy.delete", "An operator policy deleted.";
    ParameterPut = "parameter.put", "A parameter set.";
    ParameterDelete = "parameter.delete", "A parameter cleared.";
    GlobalParameterPut = "global_parameter.put", "A global parameter set, or the name of the cluster.";
    GlobalParameterDelete = "global_parameter.delete", "A global parameter cleared.";
    DefinitionsImport = "definitions.import", "An import of definitions.";
    DefinitionsExport = "definitions.export", "An export of definitions, which contains password hashes.";
    ConnectionClose = "connection.close", "Connections closed over HTTP.";
    FeatureFlagEnable = "feature_flag.enable", "A feature flag enabled.";
    NodeJoin = "node.join", "A node that joined the cluster.";
    NodeForget = "node.forget", "A node removed from the cluster.";
    MajorityRecover = "majority.recover", "A step of the recovery of the cluster or of queues that lost most of their nodes.";
    NodeMaintenance = "node.maintenance", "Maintenance mode of a node begun or ended.";
    NodeConfigure = "node.configure", "A limit or log level of a node changed until its restart, or its configuration reloaded.";
    LoginCountsReset = "login_counts.reset", "The counts of login attempts reset.";
    AuditLost = "audit.lost", "Records that are missing in the audit log.";
    HttpRequest = "http.request", "Any other HTTP request that is not a read.";
}

impl Operation {
    /// The kind of the object: the name up to the dot.
    pub fn kind(self) -> &'static str {
        let name = self.name();
        name.split_once('.').map_or(name, |(kind, _)| kind)
    }
}
