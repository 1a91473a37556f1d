//! Passwords that an LDAP server checks, and groups that have tags and permissions.

mod ber;
mod client;
mod names;
#[cfg(test)]
mod tests;
mod tls;

use crate::password_backend::{AcceptedLogin, MAX_NAME, MAX_TAGS, PasswordChecker};
use client::{
    Equality, LdapConnection, LdapError, Protection, SearchQuery, SearchScope, ServerAddress,
};
use env::{Clock, Time};
use metadata::{IdentityPermissions, MAX_SCOPES, Name, Scope};
use names::{USERNAME, fill, is_dn};
use rustls_pki_types::ServerName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most LDAP servers.
pub const MAX_LDAP_SERVERS: usize = 8;
/// Most groups of the settings.
pub const MAX_LDAP_GROUPS: usize = 256;
/// Most groups of the directory that a user may be in, with `auth_ldap.group_lookup_base`.
pub const MAX_NESTED_GROUPS: usize = 256;
/// Most levels of groups in groups.
const MAX_GROUP_DEPTH: usize = 16;
/// Time for which a server that failed is asked after the others.
const FAILED_SERVER_PAUSE: Duration = Duration::from_secs(10);
/// Least time between two log entries about one failed server.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The attributes of groups that name their members: those of `groupOfNames` and of `groupOfUniqueNames`.
const MEMBER_ATTRIBUTES: [&str; 2] = ["member", "uniqueMember"];

/// The account of a bind for searches, if it is not the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdapBindMode {
    /// The user who logs in.
    AsUser,
    /// Nobody.
    Anonymous,
}

/// How the node authenticates itself for searches.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LdapBindSettings {
    /// None: the account, or the user if there is no account.
    pub mode: Option<LdapBindMode>,
    /// The distinguished name of an account; may be empty.
    pub user_dn: String,
    /// The password of the account; may be empty.
    pub password: String,
}

impl std::fmt::Debug for LdapBindSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LdapBindSettings")
            .field("mode", &self.mode)
            .field("user_dn", &self.user_dn)
            .finish_non_exhaustive()
    }
}

enum SearchBind<'s> {
    AsUser,
    Anonymous,
    Account(&'s str, &'s str),
}

impl LdapBindSettings {
    fn bind(&self) -> SearchBind<'_> {
        match self.mode {
            Some(LdapBindMode::Anonymous) => SearchBind::Anonymous,
            None if !self.user_dn.is_empty() => SearchBind::Account(&self.user_dn, &self.password),
            Some(LdapBindMode::AsUser) | None => SearchBind::AsUser,
        }
    }

    fn check(&self, key: &str) -> Option<String> {
        let (has_dn, has_password) = (!self.user_dn.is_empty(), !self.password.is_empty());
        if has_dn != has_password {
            return Some(format!(
                "`{key}.user_dn` and `{key}.password` are needed together: a bind without password is anonymous"
            ));
        }
        (self.mode.is_some() && has_dn)
            .then(|| format!("`{key}` contradicts `{key}.user_dn`: set one of the two"))
    }
}

/// Tags and permissions of the members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdapGroup {
    /// The distinguished name of the group.
    pub dn: String,
    /// Tags, separated by commas.
    pub tags: String,
    /// Scopes as in access tokens without their prefix, separated by spaces.
    pub scopes: String,
}

/// Settings of LDAP servers. Names are those of RabbitMQ's settings, except `groups` and `allow_plaintext`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapSettings {
    /// Host names or addresses, in the order in which they are asked.
    pub servers: BTreeMap<u32, String>,
    /// Port of all servers.
    pub port: u16,
    /// Time for all requests of a login to one server.
    pub timeout: Duration,
    /// TLS from the first byte.
    pub use_ssl: bool,
    /// TLS after a request on the connection.
    pub use_starttls: bool,
    /// Passwords may be sent over the network without TLS.
    pub allow_plaintext: bool,
    /// Certificates of the authorities that servers are verified with. None: those of the operating system.
    pub cacertfile: Option<PathBuf>,
    /// The node's certificate.
    pub certfile: Option<PathBuf>,
    /// The key of the node's certificate.
    pub keyfile: Option<PathBuf>,
    /// The certificates of servers are verified.
    pub verify_peer: bool,
    /// The name in the certificates of servers; empty: the host.
    pub sni: String,
    /// The name for a bind; empty: the distinguished name.
    pub user_bind_pattern: String,
    /// The distinguished name of a user, or the value that is looked up.
    pub user_dn_pattern: String,
    /// The attribute with the user name; empty: there is no lookup.
    pub dn_lookup_attribute: String,
    /// The part of the directory that has the users.
    pub dn_lookup_base: String,
    /// The account for the lookup of users.
    pub dn_lookup_bind: LdapBindSettings,
    /// The account for the lookup of groups.
    pub other_bind: LdapBindSettings,
    /// The part of the directory that has groups of groups; empty: only direct members count.
    pub group_lookup_base: String,
    /// Groups with tags and permissions, by their name in the settings.
    pub groups: BTreeMap<String, LdapGroup>,
}

impl Default for LdapSettings {
    fn default() -> LdapSettings {
        LdapSettings {
            servers: BTreeMap::new(),
            port: 389,
            timeout: Duration::from_secs(5),
            use_ssl: false,
            use_starttls: false,
            allow_plaintext: false,
            cacertfile: None,
            certfile: None,
            keyfile: None,
            verify_peer: true,
            sni: String::new(),
            user_bind_pattern: String::new(),
            user_dn_pattern: USERNAME.to_owned(),
            dn_lookup_attribute: String::new(),
            dn_lookup_base: String::new(),
            dn_lookup_bind: LdapBindSettings::default(),
            other_bind: LdapBindSettings::default(),
            group_lookup_base: String::new(),
            groups: BTreeMap::new(),
        }
    }
}

/// Returns true for a host name or address, without a scheme and a port.
pub fn is_ldap_host(text: &str) -> bool {
    text.len() <= 255 && ServerName::try_from(text).is_ok()
}

fn is_loopback(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "::1")
}

impl LdapSettings {
    fn has_tls(&self) -> bool {
        self.use_ssl || self.use_starttls
    }

    /// Missing or contradictory settings. `has_scopes`: permissions come from groups.
    pub(crate) fn check(&self, has_scopes: bool) -> Vec<String> {
        let mut errors = Vec::new();
        if self.servers.is_empty() {
            errors.push("`auth_ldap.servers.1` is missing: the backend ldap needs it".to_owned());
        }
        if self.servers.len() > MAX_LDAP_SERVERS {
            errors.push(format!(
                "`auth_ldap.servers`: there are more than {MAX_LDAP_SERVERS} servers"
            ));
        }
        if self.use_ssl && self.use_starttls {
            errors.push(
                "`auth_ldap.use_ssl` and `auth_ldap.use_starttls` exclude each other".to_owned(),
            );
        }
        if !self.has_tls() && !self.allow_plaintext {
            let mut remote = self.servers.iter().filter(|(_, host)| !is_loopback(host));
            if let Some((index, host)) = remote.next() {
                errors.push(format!(
                    "`auth_ldap.servers.{index}`: passwords would be sent to {host} without TLS: set \
                     `auth_ldap.use_ssl` or `auth_ldap.use_starttls`, or else `auth_ldap.allow_plaintext = true`"
                ));
            }
        }
        if self.certfile.is_some() != self.keyfile.is_some() {
            errors.push(
                "`auth_ldap.ssl_options.certfile` and `auth_ldap.ssl_options.keyfile` are needed together".to_owned(),
            );
        }
        for (key, pattern) in [
            ("user_dn_pattern", &self.user_dn_pattern),
            ("user_bind_pattern", &self.user_bind_pattern),
        ] {
            if !pattern.is_empty() && pattern.replace(USERNAME, "").contains("${") {
                errors.push(format!(
                    "`auth_ldap.{key}`: the only variable is {USERNAME}"
                ));
            } else if !pattern.is_empty() && !pattern.contains(USERNAME) {
                errors.push(format!("`auth_ldap.{key}`: {USERNAME} is missing"));
            }
        }
        self.check_lookup(&mut errors);
        self.check_groups(has_scopes, &mut errors);
        errors
    }

    fn check_lookup(&self, errors: &mut Vec<String>) {
        let has_attribute = !self.dn_lookup_attribute.is_empty();
        if has_attribute == self.dn_lookup_base.is_empty() {
            errors.push("`auth_ldap.dn_lookup_attribute` and `auth_ldap.dn_lookup_base` are needed together".to_owned());
        }
        let binds = [
            ("auth_ldap.dn_lookup_bind", &self.dn_lookup_bind),
            ("auth_ldap.other_bind", &self.other_bind),
        ];
        errors.extend(binds.iter().filter_map(|(key, bind)| bind.check(key)));
        if !has_attribute && !self.groups.is_empty() && !is_dn(&self.user_dn_pattern) {
            errors.push(
                "`auth_ldap.groups` needs the distinguished names of users: set `auth_ldap.user_dn_pattern` to one, \
                 such as `cn=${username},ou=people,dc=example,dc=com`, or set `auth_ldap.dn_lookup_attribute` and \
                 `auth_ldap.dn_lookup_base`"
                    .to_owned(),
            );
        }
    }

    fn check_groups(&self, has_scopes: bool, errors: &mut Vec<String>) {
        if has_scopes && self.groups.is_empty() {
            errors.push(
                "the backend ldap gives permissions to members of `auth_ldap.groups.NAME.dn`, and there is no group: \
                 set groups, or `auth_backends.N.authn = ldap` and `auth_backends.N.authz = internal`"
                    .to_owned(),
            );
        }
        if self.groups.len() > MAX_LDAP_GROUPS {
            errors.push(format!(
                "`auth_ldap.groups`: there are more than {MAX_LDAP_GROUPS} groups"
            ));
        }
        for (name, group) in &self.groups {
            if let Err(error) = CompiledGroup::new(group) {
                errors.push(format!("`auth_ldap.groups.{name}{error}"));
            }
        }
    }
}

/// A group whose tags and scopes are parsed.
struct CompiledGroup {
    dn: String,
    tags: Vec<Name>,
    scopes: Vec<Scope>,
}

impl CompiledGroup {
    /// Errors begin with the rest of the key.
    fn new(group: &LdapGroup) -> Result<CompiledGroup, String> {
        if !is_dn(&group.dn) {
            return Err(".dn` is missing or is no distinguished name".to_owned());
        }
        let tags = group.tags.split(',').map(str::trim);
        let tags: Vec<Name> = tags.filter(|tag| !tag.is_empty()).map(Name::from).collect();
        if tags.len() > MAX_TAGS || tags.iter().any(|tag| tag.len() > MAX_NAME) {
            return Err(format!(
                ".tags`: there are more than {MAX_TAGS} tags, or one has more than {MAX_NAME} bytes"
            ));
        }
        let mut scopes = Vec::new();
        for text in group.scopes.split_ascii_whitespace() {
            let scope = Scope::parse(text).ok_or_else(|| {
                format!(
                    ".scopes`: '{text}' is no permission: write configure:VHOST/NAME, write:VHOST/NAME or \
                     read:VHOST/NAME, with special characters percent-encoded"
                )
            })?;
            scopes.push(scope);
        }
        match scopes.len() > MAX_SCOPES {
            true => Err(format!(".scopes`: there are more than {MAX_SCOPES} scopes")),
            false => Ok(CompiledGroup {
                dn: group.dn.clone(),
                tags,
                scopes,
            }),
        }
    }
}

struct LdapServer {
    host: String,
    tls_name: ServerName<'static>,
    state: Mutex<ServerState>,
}

#[derive(Clone, Copy, Default)]
struct ServerState {
    failed_at: Option<Time>,
    logged_at: Option<Time>,
    /// The last log entry says that the server cannot be used.
    is_reported: bool,
}

fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks passwords with LDAP servers.
pub(crate) struct LdapChecker {
    settings: LdapSettings,
    protection: Protection,
    servers: Vec<LdapServer>,
    groups: Vec<CompiledGroup>,
    clock: Arc<dyn Clock + Send + Sync>,
}

impl LdapChecker {
    /// Reads the files of the settings. Errors name the key.
    pub(crate) fn new(
        settings: &LdapSettings,
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> Result<LdapChecker, String> {
        let protection = match (settings.use_ssl, settings.use_starttls) {
            (false, false) => Protection::None,
            (true, _) => Protection::Tls(tls::client_config(settings)?),
            (false, true) => Protection::StartTls(tls::client_config(settings)?),
        };
        let mut servers = Vec::new();
        for (index, host) in &settings.servers {
            let name = match settings.sni.is_empty() {
                true => host,
                false => &settings.sni,
            };
            let tls_name = ServerName::try_from(name.clone())
                .map_err(|error| format!("`auth_ldap.servers.{index}`: '{name}': {error}"))?;
            servers.push(LdapServer {
                host: host.clone(),
                tls_name,
                state: Mutex::default(),
            });
        }
        let compile = |(name, group): (&String, &LdapGroup)| {
            CompiledGroup::new(group).map_err(|error| format!("`auth_ldap.groups.{name}{error}"))
        };
        Ok(LdapChecker {
            groups: settings
                .groups
                .iter()
                .map(compile)
                .collect::<Result<_, _>>()?,
            settings: settings.clone(),
            protection,
            servers,
            clock,
        })
    }

    /// The servers in their order, but those that failed a moment ago come last.
    fn ordered_servers(&self) -> Vec<&LdapServer> {
        let now = self.clock.now();
        let has_failed = |server: &&LdapServer| {
            let failed_at = lock(&server.state).failed_at;
            failed_at.is_some_and(|at| now.since(at) < FAILED_SERVER_PAUSE)
        };
        let (mut failed, mut ordered) = (Vec::new(), Vec::new());
        for server in &self.servers {
            match has_failed(&server) {
                true => failed.push(server),
                false => ordered.push(server),
            }
        }
        ordered.append(&mut failed);
        ordered
    }

    fn note_failure(&self, server: &LdapServer, error: &str) {
        let now = self.clock.now();
        let mut state = lock(&server.state);
        state.failed_at = Some(now);
        let is_silent = state
            .logged_at
            .is_some_and(|at| now.since(at) < FAILURE_LOG_INTERVAL);
        if !is_silent {
            (state.logged_at, state.is_reported) = (Some(now), true);
            tracing::warn!(
                event = "ldap.server_unavailable",
                server = %server.host,
                port = self.settings.port,
                error,
                "the next server or the next backend checks logins"
            );
        }
    }

    fn note_success(&self, server: &LdapServer) {
        let mut state = lock(&server.state);
        state.failed_at = None;
        if std::mem::take(&mut state.is_reported) {
            tracing::info!(event = "ldap.server_available", server = %server.host, port = self.settings.port);
        }
    }

    fn log_in_at(
        &self,
        server: &LdapServer,
        user: &str,
        password: &[u8],
    ) -> Result<AcceptedLogin, LdapError> {
        let deadline = self.clock.now() + self.settings.timeout;
        let address = ServerAddress {
            host: &server.host,
            port: self.settings.port,
        };
        let mut connection = LdapConnection::open(
            &address,
            (&self.protection, &server.tls_name),
            (&self.clock, deadline),
        )?;
        let dn = self.authenticate(&mut connection, user, password)?;
        let login = self.read_groups(&mut connection, &dn)?;
        connection.unbind();
        Ok(login)
    }

    /// Checks the password, and returns the distinguished name of the user.
    fn authenticate(
        &self,
        connection: &mut LdapConnection,
        user: &str,
        password: &[u8],
    ) -> Result<String, LdapError> {
        let settings = &self.settings;
        let pattern = match settings.user_bind_pattern.is_empty() {
            true => &settings.user_dn_pattern,
            false => &settings.user_bind_pattern,
        };
        let bind_name = fill(pattern, user);
        if settings.dn_lookup_attribute.is_empty() {
            connection.bind(&bind_name, password)?;
            return Ok(fill(&settings.user_dn_pattern, user));
        }
        match settings.dn_lookup_bind.bind() {
            SearchBind::AsUser => {
                connection.bind(&bind_name, password)?;
                return self.look_up(connection, user);
            }
            // A new connection is anonymous.
            SearchBind::Anonymous => {}
            SearchBind::Account(dn, secret) => {
                bind_account(connection, "auth_ldap.dn_lookup_bind", (dn, secret))?;
            }
        }
        let dn = self.look_up(connection, user)?;
        connection.bind(&dn, password)?;
        Ok(dn)
    }

    fn look_up(&self, connection: &mut LdapConnection, user: &str) -> Result<String, LdapError> {
        let settings = &self.settings;
        let value = settings.user_dn_pattern.replace(USERNAME, user);
        let wanted = Equality {
            attribute: &settings.dn_lookup_attribute,
            value: &value,
        };
        let mut found = connection.search(&SearchQuery {
            base: &settings.dn_lookup_base,
            scope: SearchScope::Subtree,
            any: &[wanted],
            limit: 1,
        })?;
        let (base, attribute) = (&settings.dn_lookup_base, &settings.dn_lookup_attribute);
        match found.dns.pop() {
            Some(_) if found.has_more => Err(LdapError::Refused(format!(
                "several entries below '{base}' have the user name as {attribute}"
            ))),
            // A bind without a name is anonymous.
            Some(dn) if !dn.is_empty() => Ok(dn),
            _ => Err(LdapError::Refused(format!(
                "no entry below '{base}' has the user name as {attribute}, or the account of \
                 `auth_ldap.dn_lookup_bind` may not read it"
            ))),
        }
    }

    /// Collects the tags and scopes of the groups that the user is in.
    fn read_groups(
        &self,
        connection: &mut LdapConnection,
        user_dn: &str,
    ) -> Result<AcceptedLogin, LdapError> {
        let mut members = vec![user_dn.to_owned()];
        if !self.groups.is_empty() {
            match self.settings.other_bind.bind() {
                // `authenticate` ends with a bind of the user.
                SearchBind::AsUser => {}
                SearchBind::Anonymous => connection.bind_anonymously()?,
                SearchBind::Account(dn, secret) => {
                    bind_account(connection, "auth_ldap.other_bind", (dn, secret))?;
                }
            }
            self.add_nested_groups(connection, &mut members)?;
        }
        let any = equalities(&members);
        let mut tags = BTreeSet::new();
        let mut scopes = Vec::new();
        for group in &self.groups {
            let found = connection.search(&SearchQuery {
                base: &group.dn,
                scope: SearchScope::Entry,
                any: &any,
                limit: 1,
            })?;
            if found.dns.is_empty() {
                continue;
            }
            tags.extend(group.tags.iter().cloned());
            scopes.extend(group.scopes.iter().cloned());
            if scopes.len() > MAX_SCOPES || tags.len() > MAX_TAGS {
                return Err(LdapError::Refused(format!(
                    "the user's groups in `auth_ldap.groups` have more than {MAX_SCOPES} scopes or {MAX_TAGS} tags"
                )));
            }
        }
        Ok(AcceptedLogin {
            tags: tags.into_iter().collect(),
            permissions: IdentityPermissions::Scopes(scopes.into()),
        })
    }

    /// Adds the groups that the user is in, and the groups that these are in.
    fn add_nested_groups(
        &self,
        connection: &mut LdapConnection,
        members: &mut Vec<String>,
    ) -> Result<(), LdapError> {
        let base = &self.settings.group_lookup_base;
        let mut known: BTreeSet<String> = members.iter().cloned().collect();
        let mut level = members.clone();
        for _ in 0..MAX_GROUP_DEPTH {
            if base.is_empty() || level.is_empty() {
                return Ok(());
            }
            let found = connection.search(&SearchQuery {
                base,
                scope: SearchScope::Subtree,
                any: &equalities(&level),
                limit: MAX_NESTED_GROUPS,
            })?;
            let new = found.dns.into_iter();
            level = new.filter(|dn| known.insert(dn.clone())).collect();
            members.extend(level.iter().cloned());
            if found.has_more || members.len() > MAX_NESTED_GROUPS + 1 {
                return Err(LdapError::Refused(format!(
                    "the user is in more than {MAX_NESTED_GROUPS} groups below '{base}'; choose another \
                     `auth_ldap.group_lookup_base`"
                )));
            }
        }
        Ok(())
    }
}

fn equalities(members: &[String]) -> Vec<Equality<'_>> {
    let both = |value| MEMBER_ATTRIBUTES.map(|attribute| Equality { attribute, value });
    members.iter().flat_map(|dn| both(dn.as_str())).collect()
}

/// Binds an account of the settings. Its refusal is no fault of the user.
fn bind_account(
    connection: &mut LdapConnection,
    key: &str,
    (dn, password): (&str, &str),
) -> Result<(), LdapError> {
    let bound = connection.bind(dn, password.as_bytes());
    bound.map_err(|error| match error {
        LdapError::Credentials(why) => {
            LdapError::Refused(format!("{why}: check `{key}.user_dn` and `{key}.password`"))
        }
        error => error,
    })
}

impl PasswordChecker for LdapChecker {
    fn name(&self) -> &'static str {
        "ldap"
    }

    fn check(&self, user: &str, password: &[u8]) -> Result<AcceptedLogin, String> {
        if password.is_empty() {
            return Err(
                "the password is empty: a server may accept such a bind without a check".to_owned(),
            );
        }
        let mut failures = Vec::new();
        for server in self.ordered_servers() {
            let outcome = self.log_in_at(server, user, password);
            let place = format!("{}:{}", server.host, self.settings.port);
            match outcome {
                Err(LdapError::Server(why)) => {
                    self.note_failure(server, &why);
                    failures.push(format!("{place}: {why}"));
                    continue;
                }
                Ok(login) => {
                    self.note_success(server);
                    return Ok(login);
                }
                Err(LdapError::Credentials(why)) => {
                    self.note_success(server);
                    return Err(format!(
                        "{place}: the user name or the password is wrong: {why}"
                    ));
                }
                Err(LdapError::Refused(why)) => {
                    self.note_success(server);
                    return Err(format!("{place}: {why}"));
                }
            }
        }
        Err(format!(
            "no server can check the password: {}",
            failures.join("; ")
        ))
    }
}
