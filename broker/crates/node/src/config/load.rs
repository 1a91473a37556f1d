//! Loads a configuration from its sources, with errors that name the location.

use super::effective::{AppliedSetting, is_secret};
use super::keys::{find, nearest};
use super::parse::parse;
use super::{Config, Listen};
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a configuration file in bytes.
const MAX_FILE: u64 = 1 << 20;

const ENV_PREFIX: &str = "POSTHORN_";

/// The sources of settings.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// `--config`; `conf.d/*.conf` beside it is read after it.
    pub file: Option<PathBuf>,
    /// The process's environment; only variables with the prefix are used.
    pub environment: Vec<(String, String)>,
    /// `--set key=value`, in order.
    pub flags: Vec<String>,
}

/// The location of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// A line of a file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The file as a whole.
    Path(PathBuf),
    /// An environment variable.
    Environment(String),
    /// `--set`, with its key.
    Flag(String),
    /// Settings that are valid individually but not in combination.
    Together,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::File { path, line } => write!(f, "{}:{line}", path.display()),
            SettingOrigin::Path(path) => write!(f, "{}", path.display()),
            SettingOrigin::Environment(name) => write!(f, "environment {name}"),
            SettingOrigin::Flag(text) => write!(f, "--set {text}"),
            SettingOrigin::Together => write!(f, "configuration"),
        }
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {what}")]
pub struct ConfigError {
    /// Where it is set.
    pub origin: SettingOrigin,
    /// The problem, and the remedy.
    pub what: String,
}

/// All errors, so that they can be fixed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Default port of the MQTT listener of a single node without configured listeners.
const MQTT_PORT: u16 = 1883;
const STREAM_PORT: u16 = 5552;

/// These listeners as values of settings.
pub(super) const IMPLIED: &[(&str, &str)] = &[
    ("mqtt.listeners.tcp.default", "127.0.0.1:1883"),
    ("stream.listeners.tcp.default", "127.0.0.1:5552"),
];

/// Loads the configuration, or returns all errors.
pub fn load(sources: &ConfigSources) -> Result<Config, ConfigErrors> {
    load_settings(sources).map(|loaded| loaded.config)
}

/// A configuration and the settings from which it was built.
pub(super) struct LoadedSettings {
    pub(super) config: Config,
    /// Valid settings, in the order in which they were applied.
    pub(super) applied: Vec<AppliedSetting>,
    /// No listener is configured: those of a single node on loopback apply.
    pub(super) has_implied_listeners: bool,
}

/// Like [`load`], with the settings of all sources.
pub(super) fn load_settings(sources: &ConfigSources) -> Result<LoadedSettings, ConfigErrors> {
    let mut loader = ConfigLoader::new();
    if let Some(file) = &sources.file {
        loader.file(file);
        loader.directory(file);
    }
    for (name, value) in &sources.environment {
        loader.environment(name, value);
    }
    for flag in &sources.flags {
        loader.flag(flag);
    }
    let has_implied_listeners = !loader.listeners && loader.config.cluster.peers.is_empty();
    loader.finish(has_implied_listeners)
}

/// Builds the configuration of settings that were loaded before.
pub(super) fn replay(
    applied: Vec<AppliedSetting>,
    has_implied_listeners: bool,
) -> Result<LoadedSettings, ConfigErrors> {
    let mut loader = ConfigLoader::new();
    for setting in applied {
        loader.set(setting.origin, &setting.key, &setting.value);
    }
    loader.finish(has_implied_listeners)
}

struct ConfigLoader {
    config: Config,
    errors: Vec<ConfigError>,
    /// A client listener was configured explicitly.
    listeners: bool,
    /// Valid settings, in the order in which they were applied.
    applied: Vec<AppliedSetting>,
}

impl ConfigLoader {
    fn new() -> ConfigLoader {
        ConfigLoader {
            config: Config::default(),
            errors: Vec::new(),
            listeners: false,
            applied: Vec::new(),
        }
    }

    fn finish(mut self, has_implied_listeners: bool) -> Result<LoadedSettings, ConfigErrors> {
        if has_implied_listeners {
            self.config.mqtt.plain = Listen::loopback(MQTT_PORT);
            self.config.stream.plain = Listen::loopback(STREAM_PORT);
        }
        if self.errors.is_empty() {
            self.check_together();
        }
        match self.errors.is_empty() {
            true => Ok(LoadedSettings {
                config: self.config,
                applied: self.applied,
                has_implied_listeners,
            }),
            false => Err(ConfigErrors(self.errors)),
        }
    }

    fn wrong(&mut self, origin: SettingOrigin, what: impl Into<String>) {
        let what = what.into();
        self.errors.push(ConfigError { origin, what });
    }

    fn file(&mut self, path: &Path) {
        let text = match read(path) {
            Ok(text) => text,
            Err(what) => return self.wrong(SettingOrigin::Path(path.to_owned()), what),
        };
        for parsed in parse(&text) {
            let at = |line| SettingOrigin::File {
                path: path.to_owned(),
                line,
            };
            match parsed {
                Ok(setting) => self.set(at(setting.line), &setting.key, &setting.value),
                Err(bad) => self.wrong(at(bad.line), bad.what),
            }
        }
    }

    fn directory(&mut self, file: &Path) {
        let directory = file.with_file_name("conf.d");
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            Err(e) => return self.wrong(SettingOrigin::Path(directory), e.to_string()),
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "conf"));
        paths.sort();
        for path in paths {
            self.file(&path);
        }
    }

    fn environment(&mut self, name: &str, value: &str) {
        let Some(rest) = name.strip_prefix(ENV_PREFIX) else {
            return;
        };
        if is_service_link(rest, value) {
            return;
        }
        let key = rest
            .split("__")
            .map(|part| part.replace('_', "."))
            .collect::<Vec<_>>()
            .join("_")
            .to_lowercase();
        self.set(SettingOrigin::Environment(name.to_owned()), &key, value);
    }

    fn flag(&mut self, flag: &str) {
        let key = flag.split_once('=').map_or(flag, |(key, _)| key);
        let origin = SettingOrigin::Flag(key.trim().to_owned());
        match flag.split_once('=') {
            Some((key, value)) => self.set(origin, key.trim(), value.trim()),
            None => self.wrong(origin, "expected key=value"),
        }
    }

    fn set(&mut self, origin: SettingOrigin, name: &str, value: &str) {
        let Some((key, rest)) = find(name) else {
            let hint = nearest(name)
                .map(|n| format!("; did you mean `{n}`?"))
                .unwrap_or_default();
            return self.wrong(origin, format!("unknown key `{name}`{hint}"));
        };
        self.listeners |= name.contains("listeners.");
        if (key.set)(&mut self.config, rest, value).is_none() {
            let accepts = key.accepts;
            // Passwords must not appear in the log.
            let shown = if is_secret(name) {
                "value".to_owned()
            } else {
                format!("value `{value}`")
            };
            return self.wrong(origin, format!("`{name}`: bad {shown}; expected {accepts}"));
        }
        self.applied.push(AppliedSetting {
            key: name.to_owned(),
            value: value.to_owned(),
            origin,
        });
    }

    fn check_together(&mut self) {
        let cluster = &self.config.cluster;
        let mut errors_found = Vec::new();
        if let Some(auth) = &cluster.auth {
            let files = [
                ("cacertfile", &auth.cacertfile),
                ("certfile", &auth.certfile),
                ("keyfile", &auth.keyfile),
            ];
            for (name, path) in files {
                if path.as_os_str().is_empty() {
                    errors_found.push(format!("`cluster.auth.{name}` is missing: all of cacertfile, certfile and keyfile are needed"));
                }
            }
        }
        errors_found.extend(check_tls(&self.config));
        errors_found.extend(self.config.tiered.check());
        errors_found.extend(self.config.opentelemetry.check());
        errors_found.extend(self.config.backends.check());
        if !cluster.peers.is_empty() && cluster.listener == Listen::None {
            errors_found
                .push("`cluster.peers` needs `cluster.listener`, by convention 25672".to_owned());
        }
        if cluster.initial_size > 0
            && cluster.peers.len() > 1
            && cluster.initial_size != cluster.peers.len()
        {
            errors_found.push(format!(
                "`cluster.initial_size` is {} and `cluster.peers` has {} entries",
                cluster.initial_size,
                cluster.peers.len()
            ));
        }
        if cluster.peer_timeout < cluster.heartbeat * 2 {
            errors_found.push(
                "`cluster.peer_timeout` must be at least twice `cluster.heartbeat_interval`"
                    .to_owned(),
            );
        }
        for what in errors_found {
            self.wrong(SettingOrigin::Together, what);
        }
    }
}

/// Missing or contradictory TLS keys.
fn check_tls(config: &Config) -> Vec<String> {
    let tls = &config.tls;
    let mut errors_found = Vec::new();
    let listeners = [
        ("listeners.ssl.default", config.amqp_tls),
        ("mqtt.listeners.ssl.default", config.mqtt.tls),
        ("web_mqtt.ssl.port", config.web_mqtt.tls),
        ("web_amqp.ssl.port", config.web_amqp.tls),
        ("stream.listeners.ssl.default", config.stream.tls),
    ];
    for (listener, _) in listeners.iter().filter(|l| l.1 != Listen::None) {
        let files = [("certfile", &tls.certfile), ("keyfile", &tls.keyfile)];
        for (name, file) in files {
            if file.is_none() {
                errors_found.push(format!("`{listener}` needs `ssl_options.{name}`"));
            }
        }
    }
    let http = [
        (
            "management.ssl",
            config.management_tls,
            &config.management_files,
        ),
        (
            "prometheus.ssl",
            config.prometheus_tls,
            &config.prometheus_files,
        ),
        (
            "operator.ssl",
            config.operator.listener,
            &config.operator.files,
        ),
    ];
    for (key, _, own) in http.iter().filter(|h| h.1 != Listen::None) {
        let both = [
            ("certfile", &own.certfile, &tls.certfile),
            ("keyfile", &own.keyfile, &tls.keyfile),
        ];
        for (name, own, shared) in both {
            if own.is_none() && shared.is_none() {
                errors_found.push(format!(
                    "`{key}.port` needs `{key}.{name}` or `ssl_options.{name}`"
                ));
            }
        }
        if own.certfile.is_some() != own.keyfile.is_some() {
            errors_found.push(format!("`{key}.certfile` and `{key}.keyfile` go together"));
        }
    }
    if config.operator.listener != Listen::None && config.operator.files.cacertfile.is_none() {
        errors_found.push("`operator.ssl.port` needs `operator.ssl.cacertfile`".to_owned());
    }
    if tls.verify_peer && tls.cacertfile.is_none() {
        errors_found
            .push("`ssl_options.verify = verify_peer` needs `ssl_options.cacertfile`".to_owned());
    }
    if tls.fail_if_no_peer_cert && !tls.verify_peer {
        let text =
            "`ssl_options.fail_if_no_peer_cert = true` needs `ssl_options.verify = verify_peer`";
        errors_found.push(text.to_owned());
    }
    if config.mqtt.by_certificate && !tls.verify_peer {
        let text = "`mqtt.ssl_cert_login = true` needs `ssl_options.verify = verify_peer`";
        errors_found.push(text.to_owned());
    }
    let external = config
        .mechanisms
        .values()
        .any(|m| *m == auth::Mechanism::External);
    if external && !tls.verify_peer {
        let text = "`auth_mechanisms` with EXTERNAL needs `ssl_options.verify = verify_peer`";
        errors_found.push(text.to_owned());
    }
    errors_found
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|f| f.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(format!("larger than {MAX_FILE} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

/// Kubernetes adds the addresses of Services to the environment of Pods; a Service named `posthorn`
/// or `posthorn-...` yields names with our prefix.
fn is_service_link(name: &str, value: &str) -> bool {
    let linked = ["tcp://", "udp://", "sctp://"];
    let port = |p: &str| {
        p.split_once('_').is_some_and(|(number, rest)| {
            number.parse::<u16>().is_ok() && (rest.starts_with("TCP") || rest.starts_with("UDP"))
        })
    };
    let name = format!("_{name}");
    linked.iter().any(|l| value.starts_with(l))
        || name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.split("_PORT_").skip(1).any(port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RunningConfig;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> std::io::Result<Dir> {
            let path =
                std::env::temp_dir().join(format!("posthorn-config-{}-{name}", std::process::id()));
            fs::create_dir_all(path.join("conf.d"))?;
            Ok(Dir(path))
        }

        fn write(&self, name: &str, text: &str) -> std::io::Result<PathBuf> {
            let path = self.0.join(name);
            fs::write(&path, text)?;
            Ok(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn flags(flags: &[&str]) -> Result<Config, String> {
        let sources = ConfigSources {
            flags: flags.iter().map(|f| (*f).to_owned()).collect(),
            ..ConfigSources::default()
        };
        load(&sources).map_err(|e| e.to_string())
    }

    #[test]
    fn later_sources_take_precedence() -> Result<(), Box<dyn std::error::Error>> {
        let dir = Dir::new("order")?;
        let file = dir.write(
            "posthorn.conf",
            "heartbeat = 1\nchannel_max = 1\nframe_max = 10000\ndefault_user = a # first\ncluster.name = x\n",
        )?;
        dir.write("conf.d/10-user.conf", "default_user = b\nchannel_max = 2\n")?;
        dir.write("conf.d/90-user.conf", "channel_max = 3\nframe_max = 10001")?;
        dir.write("conf.d/95-ignored.conf~", "nonsense")?;
        let config = load(&ConfigSources {
            file: Some(file),
            environment: vec![
                ("POSTHORN_FRAME__MAX".into(), "10002".into()),
                ("POSTHORN_HEARTBEAT".into(), "4".into()),
                (
                    "POSTHORN_CLUSTER_ADVERTISED__HOST".into(),
                    "c-0.nodes".into(),
                ),
                (
                    "POSTHORN_PORT_5672_TCP".into(),
                    "tcp://10.0.0.1:5672".into(),
                ),
                ("POSTHORN_SERVICE_PORT_AMQP".into(), "5672".into()),
                ("HOME".into(), "/".into()),
            ],
            flags: vec![
                "heartbeat=5".into(),
                "advertised_listeners.amqp/ssl=[2001:db8::1]:30671".into(),
            ],
        })?;
        let advertised = &config.advertised_listeners["amqp/ssl"];
        assert_eq!(advertised.to_string(), "[2001:db8::1]:30671");
        assert_eq!(config.default_user, "b");
        assert_eq!(config.limits.channel_max, 3);
        assert_eq!(config.limits.frame_max, 10002);
        assert_eq!(config.limits.heartbeat_s, 5);
        assert_eq!(config.cluster.advertised_host, "c-0.nodes");
        assert_eq!(config.cluster.name, "x");
        Ok(())
    }

    #[test]
    fn effective_settings_name_their_last_source() -> Result<(), Box<dyn std::error::Error>> {
        let dir = Dir::new("effective")?;
        let file = dir.write(
            "posthorn.conf",
            "# head\nheartbeat = 1\nchannel_max = 9\ndefault_pass = s3cret\n",
        )?;
        let name = file.display().to_string();
        let loaded = RunningConfig::load(&ConfigSources {
            file: Some(file),
            environment: vec![("POSTHORN_HEARTBEAT".into(), "4".into())],
            flags: vec!["loopback_users.app=true".into(), "frame_max=10000".into()],
        })?;
        let settings = loaded.settings();
        let of = |key: &str| {
            let setting = settings.iter().find(|s| s.key == key);
            setting.map(|s| format!("{} from {}", s.value, s.source))
        };
        assert_eq!(
            of("heartbeat"),
            Some("4 from environment POSTHORN_HEARTBEAT".to_owned())
        );
        assert_eq!(of("channel_max"), Some(format!("9 from {name}:3")));
        assert_eq!(
            of("frame_max"),
            Some("10000 from --set frame_max".to_owned())
        );
        assert_eq!(
            of("loopback_users.app"),
            Some("true from --set loopback_users.app".to_owned())
        );
        assert_eq!(of("default_user"), Some("guest from default".to_owned()));
        assert_eq!(of("default_pass"), Some(format!("******** from {name}:4")));
        assert_eq!(
            of("mqtt.listeners.tcp.default"),
            Some("127.0.0.1:1883 from default".to_owned())
        );
        assert_eq!(
            of("mqtt.allow_user_name_without_password"),
            Some("false from default".to_owned())
        );
        let values = settings.iter().map(|s| s.value.as_str());
        assert!(!values.collect::<String>().contains("s3cret"));
        Ok(())
    }

    #[test]
    fn listeners_of_a_single_node_are_effective_unless_others_are_set() -> Result<(), ConfigErrors>
    {
        for (flags, expected) in [
            (vec![], "127.0.0.1:1883"),
            (vec!["listeners.tcp.default=0".to_owned()], "none"),
            (vec!["mqtt.listeners.tcp.default=1".to_owned()], "1"),
        ] {
            let loaded = RunningConfig::load(&ConfigSources {
                flags,
                ..ConfigSources::default()
            })?;
            let (config, settings) = (&loaded.config, loaded.settings());
            let value = settings
                .iter()
                .find(|s| s.key == "mqtt.listeners.tcp.default");
            let value = value.map(|s| s.value.as_str());
            assert_eq!(value, Some(expected));
            assert_eq!(value.and_then(Listen::parse), Some(config.mqtt.plain));
        }
        Ok(())
    }

    #[test]
    fn errors_name_file_line_key_and_accepted_values() -> Result<(), Box<dyn std::error::Error>> {
        let dir = Dir::new("errors")?;
        let file = dir.write(
            "posthorn.conf",
            "# fine\nlisteners.tcp.defualt = 5672\n\nheartbeat = often\njust words\n",
        )?;
        let name = file.display().to_string();
        let sources = ConfigSources {
            file: Some(file),
            ..ConfigSources::default()
        };
        let errors = load(&sources).err().ok_or("must fail")?;
        let text: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                format!(
                    "{name}:2: unknown key `listeners.tcp.defualt`; did you mean `listeners.tcp.default`?"
                ),
                format!("{name}:4: `heartbeat`: bad value `often`; expected seconds, 0 to 65535"),
                format!("{name}:5: expected `key = value` or a `#` comment"),
            ]
        );
        Ok(())
    }

    #[test]
    fn single_node_listens_for_mqtt_by_default() -> Result<(), String> {
        assert_eq!(flags(&[])?.mqtt.plain, Listen::loopback(MQTT_PORT));
        for set in [
            &["listeners.tcp.default=0"][..],
            &["mqtt.listeners.tcp=none"],
            &["cluster.peers=a:1", "cluster.listener=0"],
        ] {
            assert_eq!(flags(set)?.mqtt.plain, Listen::None, "{set:?}");
        }
        assert_eq!(
            flags(&["mqtt.listeners.tcp.default=1"])?.mqtt.plain,
            Listen::Any(1)
        );
        Ok(())
    }

    #[test]
    fn stream_listener_is_configured_with_rabbitmq_keys() -> Result<(), String> {
        let config = flags(&[])?;
        assert_eq!(config.stream.plain, Listen::loopback(STREAM_PORT));
        assert_eq!(
            (config.stream.frame_max, config.stream.heartbeat),
            (1 << 20, 60)
        );
        let config = flags(&[
            "stream.listeners.tcp.default=5552",
            "stream.frame_max=2MiB",
            "stream.heartbeat=0",
            "stream.advertised_host=streams.example",
            "stream.advertised_port=30552",
        ])?;
        assert_eq!(config.stream.plain, Listen::Any(5552));
        assert_eq!(
            (config.stream.frame_max, config.stream.heartbeat),
            (2 << 20, 0)
        );
        let part = &config.advertised_parts["stream"];
        assert_eq!(part.host.as_deref(), Some("streams.example"));
        assert_eq!(part.port, Some(30_552));
        assert!(flags(&["stream.frame_max=8191"]).is_err());
        assert!(flags(&["stream.advertised_port=0"]).is_err());
        Ok(())
    }

    #[test]
    fn largest_message_size_is_512_mib() -> Result<(), String> {
        assert_eq!(flags(&[])?.limits.max_message_size, 16 << 20);
        let most = flags(&["max_message_size=536870912"])?;
        assert_eq!(most.limits.max_message_size, 512 << 20);
        let refused = flags(&["max_message_size=537919488"]);
        let text = refused.err().ok_or("513 MiB")?;
        for part in ["max_message_size", "537919488", "1024 to 536870912"] {
            assert!(text.contains(part), "{text}");
        }
        Ok(())
    }

    #[test]
    fn web_amqp_is_configured_apart_from_web_mqtt() -> Result<(), String> {
        let config = flags(&[
            "web_amqp.tcp.port=15678",
            "web_amqp.ws_path=/amqp",
            "web_amqp.ws_opts.max_frame_size=64KiB",
            "web_amqp.allow_origins.1=https://a.example",
        ])?;
        let web = config.web_amqp;
        assert_eq!((web.plain, web.tls), (Listen::Any(15678), Listen::None));
        assert_eq!(
            (&*web.settings.path, web.settings.max_frame),
            ("/amqp", 65536)
        );
        assert_eq!(web.settings.origins, ["https://a.example"]);
        assert_eq!(web.settings.protocols, ["amqp"]);
        assert_eq!(config.web_mqtt.settings.path, "/ws");
        assert_eq!(config.web_mqtt.settings.protocols, ["mqtt", "mqttv3.1"]);
        Ok(())
    }

    #[test]
    fn web_mqtt_is_configured_with_rabbitmq_keys() -> Result<(), String> {
        let config = flags(&[
            "web_mqtt.tcp.listener=127.0.0.1:15675",
            "web_mqtt.ws_path=/mqtt",
            "web_mqtt.ws_opts.max_frame_size=64KiB",
            "web_mqtt.allow_origins.1=https://a.example",
            "web_mqtt.allow_origins.2=https://b.example",
        ])?;
        let web = config.web_mqtt;
        assert_eq!(
            (web.plain, web.tls),
            (Listen::loopback(15675), Listen::None)
        );
        assert_eq!(
            (&*web.settings.path, web.settings.max_frame),
            ("/mqtt", 65536)
        );
        assert_eq!(
            web.settings.origins,
            ["https://a.example", "https://b.example"]
        );
        assert_eq!(
            flags(&["web_mqtt.tcp.port=1"])?.web_mqtt.plain,
            Listen::Any(1)
        );
        for set in [
            "web_mqtt.ws_path=ws",
            "web_mqtt.ws_path=/a b",
            "web_mqtt.allow_origins.x=a",
        ] {
            assert!(flags(&[set]).is_err(), "{set}");
        }
        Ok(())
    }

    #[test]
    fn missing_or_binary_file_is_an_error() -> Result<(), Box<dyn std::error::Error>> {
        let dir = Dir::new("binary")?;
        let binary = dir.0.join("binary.conf");
        fs::write(&binary, [0xff, 0xfe, 0])?;
        for (file, what) in [
            (dir.0.join("no.conf"), "No such file"),
            (binary, "not UTF-8"),
        ] {
            let sources = ConfigSources {
                file: Some(file),
                ..ConfigSources::default()
            };
            let errors = load(&sources).err().ok_or("must fail")?.to_string();
            assert!(errors.contains(what), "{errors}");
        }
        Ok(())
    }

    #[test]
    fn unknown_environment_variable_is_an_error_unless_kubernetes_sets_it() {
        let environment = |name: &str, value: &str| {
            load(&ConfigSources {
                environment: vec![(name.to_owned(), value.to_owned())],
                ..ConfigSources::default()
            })
        };
        assert!(environment("POSTHORN_SHARDSS", "1").is_err());
        assert!(environment("POSTHORN_SHARDS", "1").is_ok());
        for (name, value) in [
            ("POSTHORN_PORT", "tcp://10.0.0.1:5672"),
            ("POSTHORN_SERVICE_HOST", "10.0.0.1"),
            ("POSTHORN_DEMO_SERVICE_PORT_MANAGEMENT", "15672"),
            ("POSTHORN_DEMO_PORT_15672_TCP_ADDR", "10.0.0.1"),
        ] {
            assert!(environment(name, value).is_ok(), "{name}");
        }
    }

    #[test]
    fn contradictory_settings_are_refused() {
        for (set, what) in [
            (&["cluster.auth.certfile=/x"][..], "cluster.auth.cacertfile"),
            (&["cluster.peers=a,b"], "cluster.listener"),
            (
                &[
                    "cluster.peers=a,b",
                    "cluster.listener=1",
                    "cluster.initial_size=3",
                ],
                "initial_size",
            ),
            (&["cluster.peer_timeout=500"], "cluster.peer_timeout"),
            (
                &["web_mqtt.ssl.listener=0", "ssl_options.certfile=/x"],
                "`web_mqtt.ssl.port` needs `ssl_options.keyfile`",
            ),
            (
                &["web_amqp.ssl.port=0", "ssl_options.certfile=/x"],
                "`web_amqp.ssl.port` needs `ssl_options.keyfile`",
            ),
            (
                &["mqtt.listeners.ssl.default=0", "ssl_options.certfile=/x"],
                "`mqtt.listeners.ssl.default` needs `ssl_options.keyfile`",
            ),
            (
                &["listeners.ssl.default=0", "ssl_options.certfile=/x"],
                "`listeners.ssl.default` needs `ssl_options.keyfile`",
            ),
            (
                &["management.ssl.port=0", "ssl_options.certfile=/x"],
                "`management.ssl.port` needs `management.ssl.keyfile`",
            ),
            (
                &["prometheus.ssl.port=0"],
                "`prometheus.ssl.port` needs `prometheus.ssl.certfile`",
            ),
            (
                &[
                    "management.ssl.port=0",
                    "management.ssl.certfile=/x",
                    "ssl_options.keyfile=/x",
                ],
                "go together",
            ),
            (
                &[
                    "operator.ssl.port=0",
                    "operator.ssl.certfile=/x",
                    "operator.ssl.keyfile=/x",
                ],
                "`operator.ssl.port` needs `operator.ssl.cacertfile`",
            ),
            (
                &["operator.ssl.port=0", "operator.ssl.cacertfile=/x"],
                "`operator.ssl.port` needs `operator.ssl.certfile`",
            ),
            (
                &["ssl_options.verify=verify_peer"],
                "needs `ssl_options.cacertfile`",
            ),
            (
                &["ssl_options.fail_if_no_peer_cert=true"],
                "needs `ssl_options.verify = verify_peer`",
            ),
            (
                &["auth_mechanisms.1=EXTERNAL"],
                "with EXTERNAL needs `ssl_options.verify = verify_peer`",
            ),
            (&["shards"], "expected key=value"),
        ] {
            let error = flags(set).err().unwrap_or_default();
            assert!(error.contains(what), "{set:?}: {error}");
        }
    }

    #[test]
    fn invalid_password_is_not_shown() {
        let long = format!("default_pass={}", "secret".repeat(100));
        let error = flags(&[&long]).err().unwrap_or_default();
        // The flag itself was visible when it was typed; values from files and the environment are
        // not shown.
        assert!(
            error.contains("`default_pass`: bad value; expected"),
            "{error}"
        );
    }

    #[test]
    fn loopback_users_are_parsed_as_a_set() -> Result<(), String> {
        assert!(
            flags(&["loopback_users.guest=false"])?
                .loopback_users
                .is_empty()
        );
        assert!(flags(&["loopback_users=none"])?.loopback_users.is_empty());
        assert_eq!(
            flags(&["loopback_users.bob=true"])?.loopback_users,
            ["guest", "bob"]
        );
        Ok(())
    }

    #[test]
    fn tls_is_configured_with_rabbitmq_keys() -> Result<(), Box<dyn std::error::Error>> {
        let dir = Dir::new("tls")?;
        let file = dir.write(
            "posthorn.conf",
            "listeners.tcp = none\n\
             listeners.ssl.default = 5671\n\
             ssl_options.cacertfile = /tls/ca.crt\n\
             ssl_options.certfile = /tls/tls.crt\n\
             ssl_options.keyfile = /tls/tls.key\n\
             ssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = true\n\
             ssl_options.versions.1 = tlsv1.3\n\
             auth_mechanisms.2 = PLAIN\n\
             auth_mechanisms.1 = EXTERNAL\n\
             ssl_cert_login_from = subject_alternative_name\n\
             ssl_cert_login_san_type = uri\n\
             ssl_cert_login_san_index = 1\n",
        )?;
        let sources = ConfigSources {
            file: Some(file.clone()),
            ..ConfigSources::default()
        };
        let config = load(&sources)?;
        assert_eq!(
            (config.amqp, config.amqp_tls),
            (Listen::None, Listen::Any(5671))
        );
        let mechanisms = [auth::Mechanism::External, auth::Mechanism::Plain];
        assert_eq!(config.mechanisms(), mechanisms);
        let options = config.tls.options();
        assert_eq!(
            options.verify,
            tls::ClientVerification::Peer { required: true }
        );
        assert_eq!(
            (options.versions.tls12, options.versions.tls13),
            (false, true)
        );
        let wanted = tls::CertificateLoginSource::SubjectAlternativeName {
            kind: tls::SanType::Uri,
            index: 1,
        };
        assert_eq!(options.login_from, wanted);
        fs::write(
            &file,
            "ssl_options.versions.1 = tlsv1.1\nssl_options.verify = yes\nauth_mechanisms.x = PLAIN\n",
        )?;
        let errors = load(&sources).err().ok_or("must fail")?.to_string();
        for text in [
            ":1: `ssl_options.versions.1`: bad value `tlsv1.1`; expected tlsv1.3 or tlsv1.2",
            ":2: `ssl_options.verify`: bad value `yes`; expected verify_peer or verify_none",
            ":3: `auth_mechanisms.x`: bad value `PLAIN`; expected",
        ] {
            assert!(errors.contains(text), "{errors}");
        }
        Ok(())
    }
}
