//! Keys of the LDAP backend. Names and values are RabbitMQ's, except `groups` and `allow_plaintext`.

use super::Config;
use super::backend_keys::filled_scopes;
use super::keys::{BOOL, ConfigKey, PATH, filled, number, path};
use super::values::parse_bool;
use auth_backends::{LdapBindMode, LdapBindSettings, is_ldap_host};
use std::time::Duration;

fn ldap_bind_mode(text: &str) -> Option<LdapBindMode> {
    match text {
        "as_user" => Some(LdapBindMode::AsUser),
        "anon" => Some(LdapBindMode::Anonymous),
        _ => None,
    }
}

/// A distinguished name or pattern of at most 1024 bytes.
fn ldap_name(text: &str) -> Option<String> {
    (!text.is_empty() && text.len() <= 1024).then(|| text.to_owned())
}

/// `none` is no value, as in RabbitMQ.
fn optional_ldap_name(text: &str) -> Option<String> {
    match text {
        "none" => Some(String::new()),
        text => ldap_name(text),
    }
}

fn ldap_account(
    bind: &mut LdapBindSettings,
    (dn, password): (Option<&str>, Option<&str>),
) -> Option<()> {
    if let Some(dn) = dn {
        bind.user_dn = ldap_name(dn)?;
    }
    if let Some(password) = password {
        bind.password = filled(password)?;
    }
    Some(())
}

/// `NAME.dn`, `NAME.tags` or `NAME.scopes`.
fn ldap_group(config: &mut Config, place: &str, value: &str) -> Option<()> {
    let (name, part) = place.rsplit_once('.')?;
    if name.is_empty() {
        return None;
    }
    let value = filled_scopes(value)?;
    let groups = &mut config.backends.ldap.groups;
    let group = groups.entry(name.to_owned()).or_default();
    match part {
        "dn" => group.dn = ldap_name(&value)?,
        "tags" => group.tags = value,
        "scopes" => group.scopes = value,
        _ => return None,
    }
    Some(())
}

/// All keys, in the order of the reference.
pub(super) const LDAP_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "auth_ldap.servers.*",
        accepts: "a host name or address",
        default: "",
        doc: "LDAP servers, one for each number (`auth_ldap.servers.1`, ...); the next one is asked when one \
              cannot be used.",
        set: |c, place, v| {
            let place = place.parse().ok()?;
            let host = is_ldap_host(v).then(|| v.to_owned())?;
            c.backends.ldap.servers.insert(place, host);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_ldap.port",
        accepts: "1 to 65535",
        default: "389",
        doc: "Port of the LDAP servers; by convention 636 with `auth_ldap.use_ssl`.",
        set: |c, _, v| number(v, 1, 65_535).map(|port| c.backends.ldap.port = port),
    },
    ConfigKey {
        name: "auth_ldap.timeout",
        accepts: "100 to 60000, in milliseconds",
        default: "5000",
        doc: "Time for all requests of a login to one LDAP server.",
        set: |c, _, v| {
            let timeout = number(v, 100, 60_000)?;
            c.backends.ldap.timeout = Duration::from_millis(timeout);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_ldap.use_ssl",
        accepts: BOOL,
        default: "false",
        doc: "Connections to LDAP servers have TLS from the first byte (LDAPS).",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.ldap.use_ssl = on),
    },
    ConfigKey {
        name: "auth_ldap.use_starttls",
        accepts: BOOL,
        default: "false",
        doc: "Connections to LDAP servers begin TLS with StartTLS before they send a password.",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.ldap.use_starttls = on),
    },
    ConfigKey {
        name: "auth_ldap.allow_plaintext",
        accepts: BOOL,
        default: "false",
        doc: "Passwords may be sent without TLS to LDAP servers that are not on this machine.",
        set: |c, _, v| parse_bool(v).map(|on| c.backends.ldap.allow_plaintext = on),
    },
    ConfigKey {
        name: "auth_ldap.ssl_options.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authorities that sign the certificates of LDAP servers, instead of those of the \
              operating system.",
        set: |c, _, v| path(v).map(|p| c.backends.ldap.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "auth_ldap.ssl_options.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the node's certificate for LDAP servers that require one.",
        set: |c, _, v| path(v).map(|p| c.backends.ldap.certfile = Some(p)),
    },
    ConfigKey {
        name: "auth_ldap.ssl_options.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the key of `auth_ldap.ssl_options.certfile`.",
        set: |c, _, v| path(v).map(|p| c.backends.ldap.keyfile = Some(p)),
    },
    ConfigKey {
        name: "auth_ldap.ssl_options.verify",
        accepts: "verify_peer or verify_none",
        default: "verify_peer",
        doc: "Whether the certificates of LDAP servers are verified; without that, anybody on the network can read \
              passwords.",
        set: |c, _, v| {
            c.backends.ldap.verify_peer = match v {
                "verify_peer" => true,
                "verify_none" => false,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "auth_ldap.ssl_options.sni",
        accepts: "a host name",
        default: "",
        doc: "Name in the certificates of LDAP servers, instead of the host.",
        set: |c, _, v| is_ldap_host(v).then(|| c.backends.ldap.sni = v.to_owned()),
    },
    ConfigKey {
        name: "auth_ldap.user_dn_pattern",
        accepts: "a distinguished name with `${username}`",
        default: "${username}",
        doc: "Distinguished name of the user; with a lookup, the value of `auth_ldap.dn_lookup_attribute`.",
        set: |c, _, v| ldap_name(v).map(|t| c.backends.ldap.user_dn_pattern = t),
    },
    ConfigKey {
        name: "auth_ldap.user_bind_pattern",
        accepts: "a text with `${username}`",
        default: "",
        doc: "Name for the bind of the user, for example `${username}@example.com`, if it is not the distinguished \
              name.",
        set: |c, _, v| ldap_name(v).map(|t| c.backends.ldap.user_bind_pattern = t),
    },
    ConfigKey {
        name: "auth_ldap.dn_lookup_attribute",
        accepts: "the name of an attribute, or none",
        default: "",
        doc: "Attribute of the user's entry that has the user name; the distinguished name of the user is looked \
              up with it.",
        set: |c, _, v| optional_ldap_name(v).map(|t| c.backends.ldap.dn_lookup_attribute = t),
    },
    ConfigKey {
        name: "auth_ldap.dn_lookup_base",
        accepts: "a distinguished name, or none",
        default: "",
        doc: "Entry below which users are looked up.",
        set: |c, _, v| optional_ldap_name(v).map(|t| c.backends.ldap.dn_lookup_base = t),
    },
    ConfigKey {
        name: "auth_ldap.dn_lookup_bind",
        accepts: "as_user or anon",
        default: "",
        doc: "Whether users are looked up as the user who logs in, which is the default, or anonymously; \
              `.user_dn` and `.password` name an account instead.",
        set: |c, _, v| {
            ldap_bind_mode(v).map(|mode| c.backends.ldap.dn_lookup_bind.mode = Some(mode))
        },
    },
    ConfigKey {
        name: "auth_ldap.dn_lookup_bind.user_dn",
        accepts: "a distinguished name",
        default: "",
        doc: "Account that looks up users.",
        set: |c, _, v| ldap_account(&mut c.backends.ldap.dn_lookup_bind, (Some(v), None)),
    },
    ConfigKey {
        name: "auth_ldap.dn_lookup_bind.password",
        accepts: "a password of 1 to 255 bytes",
        default: "",
        doc: "Password of that account.",
        set: |c, _, v| ldap_account(&mut c.backends.ldap.dn_lookup_bind, (None, Some(v))),
    },
    ConfigKey {
        name: "auth_ldap.other_bind",
        accepts: "as_user or anon",
        default: "",
        doc: "Whether groups are looked up as the user who logs in, which is the default, or anonymously; \
              `.user_dn` and `.password` name an account instead.",
        set: |c, _, v| ldap_bind_mode(v).map(|mode| c.backends.ldap.other_bind.mode = Some(mode)),
    },
    ConfigKey {
        name: "auth_ldap.other_bind.user_dn",
        accepts: "a distinguished name",
        default: "",
        doc: "Account that looks up groups.",
        set: |c, _, v| ldap_account(&mut c.backends.ldap.other_bind, (Some(v), None)),
    },
    ConfigKey {
        name: "auth_ldap.other_bind.password",
        accepts: "a password of 1 to 255 bytes",
        default: "",
        doc: "Password of that account.",
        set: |c, _, v| ldap_account(&mut c.backends.ldap.other_bind, (None, Some(v))),
    },
    ConfigKey {
        name: "auth_ldap.group_lookup_base",
        accepts: "a distinguished name, or none",
        default: "",
        doc: "Entry below which groups are searched for members that are groups; without it, only direct members \
              of a group are in it.",
        set: |c, _, v| optional_ldap_name(v).map(|t| c.backends.ldap.group_lookup_base = t),
    },
    ConfigKey {
        name: "auth_ldap.groups.*",
        accepts: "a distinguished name, tags, or scopes",
        default: "",
        doc: "Tags and permissions of the members of a group: `NAME.dn` is its distinguished name, `NAME.tags` are \
              separated by commas, and `NAME.scopes` by spaces, for example `read:*/* write:%2F/orders*`.",
        set: ldap_group,
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSources, RunningConfig, load};
    use super::*;
    use auth_backends::{LdapGroup, LdapSettings};
    use std::path::PathBuf;

    fn sources(settings: &[&str]) -> ConfigSources {
        ConfigSources {
            flags: settings
                .iter()
                .map(|setting| (*setting).to_owned())
                .collect(),
            ..ConfigSources::default()
        }
    }

    fn with(settings: &[&str]) -> Result<Config, String> {
        load(&sources(settings)).map_err(|error| error.to_string())
    }

    const ALL: &[&str] = &[
        "auth_backends.1=ldap",
        "auth_ldap.servers.2=ldap.example.com",
        "auth_ldap.servers.1=10.0.0.1",
        "auth_ldap.port=636",
        "auth_ldap.timeout=1500",
        "auth_ldap.use_ssl=true",
        "auth_ldap.ssl_options.cacertfile=/ca.pem",
        "auth_ldap.ssl_options.verify=verify_none",
        "auth_ldap.ssl_options.sni=sni.example.com",
        "auth_ldap.user_dn_pattern=cn=${username},dc=a",
        "auth_ldap.dn_lookup_attribute=uid",
        "auth_ldap.dn_lookup_base=dc=a",
        "auth_ldap.dn_lookup_bind.user_dn=cn=service",
        "auth_ldap.dn_lookup_bind.password=s3cret",
        "auth_ldap.other_bind=anon",
        "auth_ldap.group_lookup_base=none",
        "auth_ldap.groups.ops.dn=cn=ops,dc=a",
        "auth_ldap.groups.ops.tags=administrator",
        "auth_ldap.groups.ops.scopes=read:*/* write:*/*",
    ];

    #[test]
    fn ldap_is_configured_with_rabbitmq_keys() -> Result<(), String> {
        let service = LdapBindSettings {
            mode: None,
            user_dn: "cn=service".to_owned(),
            password: "s3cret".to_owned(),
        };
        let nobody = LdapBindSettings {
            mode: Some(LdapBindMode::Anonymous),
            ..LdapBindSettings::default()
        };
        let group = LdapGroup {
            dn: "cn=ops,dc=a".to_owned(),
            tags: "administrator".to_owned(),
            scopes: "read:*/* write:*/*".to_owned(),
        };
        let expected = LdapSettings {
            servers: [
                (1, "10.0.0.1".to_owned()),
                (2, "ldap.example.com".to_owned()),
            ]
            .into(),
            port: 636,
            timeout: Duration::from_millis(1500),
            use_ssl: true,
            cacertfile: Some(PathBuf::from("/ca.pem")),
            verify_peer: false,
            sni: "sni.example.com".to_owned(),
            user_dn_pattern: "cn=${username},dc=a".to_owned(),
            dn_lookup_attribute: "uid".to_owned(),
            dn_lookup_base: "dc=a".to_owned(),
            dn_lookup_bind: service,
            other_bind: nobody,
            groups: [("ops".to_owned(), group)].into(),
            ..LdapSettings::default()
        };
        assert_eq!(with(ALL)?.backends.ldap, expected);
        Ok(())
    }

    #[test]
    fn account_is_read_from_the_environment() -> Result<(), String> {
        let variable = |name: &str, value: &str| {
            let name = format!("POSTHORN_AUTH__LDAP_DN__LOOKUP__BIND_{name}");
            (name, value.to_owned())
        };
        let config = load(&ConfigSources {
            environment: vec![
                variable("USER__DN", "cn=service"),
                variable("PASSWORD", "s3cret"),
            ],
            ..ConfigSources::default()
        });
        let bind = config
            .map_err(|error| error.to_string())?
            .backends
            .ldap
            .dn_lookup_bind;
        assert_eq!((&*bind.user_dn, &*bind.password), ("cn=service", "s3cret"));
        Ok(())
    }

    #[test]
    fn wrong_values_are_refused_with_their_key() {
        for (setting, part) in [
            (
                "auth_ldap.servers.1=ldap://a",
                "expected a host name or address",
            ),
            ("auth_ldap.servers.x=a", "`auth_ldap.servers.x`: bad value"),
            ("auth_ldap.port=0", "expected 1 to 65535"),
            ("auth_ldap.timeout=infinity", "expected 100 to 60000"),
            (
                "auth_ldap.dn_lookup_bind=nobody",
                "expected as_user or anon",
            ),
            (
                "auth_ldap.groups.ops=cn=ops",
                "`auth_ldap.groups.ops`: bad value",
            ),
            (
                "auth_ldap.groups.ops.name=x",
                "`auth_ldap.groups.ops.name`: bad value",
            ),
            (
                "auth_ldap.queries.tags=x",
                "unknown key `auth_ldap.queries.tags`",
            ),
            ("auth_backends.1=ldap", "`auth_ldap.servers.1` is missing"),
        ] {
            let error = with(&[setting]).err().unwrap_or_default();
            assert!(error.contains(part), "{setting}: {error}");
        }
    }

    #[test]
    fn passwords_of_accounts_are_not_shown() -> Result<(), String> {
        let config = RunningConfig::load(&sources(ALL)).map_err(|error| error.to_string())?;
        let settings = config.settings();
        let password = settings
            .iter()
            .find(|setting| setting.key.ends_with("bind.password"));
        assert_eq!(
            password.map(|setting| setting.value.as_str()),
            Some("********")
        );
        assert!(
            settings
                .iter()
                .all(|setting| !setting.value.contains("s3cret"))
        );
        assert!(!format!("{:?}", with(ALL)?).contains("s3cret"));
        let long = format!("auth_ldap.other_bind.password={}", "s3cret".repeat(100));
        let error = with(&[&long]).err().unwrap_or_default();
        assert!(error.contains("bad value; expected"), "{error}");
        Ok(())
    }
}
