//! Keys of TLS and authentication. Names and values are RabbitMQ's.

use super::Config;
use super::keys::{BOOL, ConfigKey, LISTEN, PATH, filled, number, path};
use super::values::{Listen, parse_bool};
use auth::Mechanism;
use tls::{CertificateLoginSource, SanType};

const SAN_TYPES: [(&str, SanType); 5] = [
    ("dns", SanType::Dns),
    ("ip", SanType::Ip),
    ("email", SanType::Email),
    ("uri", SanType::Uri),
    ("other_name", SanType::OtherName),
];

fn login_from(config: &mut Config, value: &str) -> Option<()> {
    let (kind, index) = (config.tls.san_type, config.tls.san_index);
    config.tls.login_from = match value {
        "distinguished_name" => CertificateLoginSource::DistinguishedName,
        "common_name" => CertificateLoginSource::CommonName,
        "subject_alternative_name" | "subject_alt_name" => {
            CertificateLoginSource::SubjectAlternativeName { kind, index }
        }
        _ => return None,
    };
    Some(())
}

/// These keys may come before or after the key that selects alternative names.
fn alternative_name(config: &mut Config) {
    let (kind, index) = (config.tls.san_type, config.tls.san_index);
    if let CertificateLoginSource::SubjectAlternativeName { .. } = config.tls.login_from {
        config.tls.login_from = CertificateLoginSource::SubjectAlternativeName { kind, index };
    }
}

/// All keys, in the order of the reference.
pub(super) const TLS_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "listeners.tcp",
        accepts: "none",
        default: "",
        doc: "`none` turns the AMQP listener without TLS off.",
        set: |c, _, v| (v == "none").then(|| c.amqp = Listen::None),
    },
    ConfigKey {
        name: "listeners.ssl",
        accepts: "none",
        default: "",
        doc: "`none` turns the AMQP listener with TLS off.",
        set: |c, _, v| (v == "none").then(|| c.amqp_tls = Listen::None),
    },
    ConfigKey {
        name: "listeners.ssl.default",
        accepts: LISTEN,
        default: "none",
        doc: "AMQP listener with TLS, by convention 5671, which needs `ssl_options.certfile` and \
              `ssl_options.keyfile`.",
        set: |c, _, v| Listen::parse(v).map(|l| c.amqp_tls = l),
    },
    ConfigKey {
        name: "ssl_options.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the server's certificate, followed by the intermediate ones; a changed \
              file applies to new connections within seconds.",
        set: |c, _, v| path(v).map(|p| c.tls.certfile = Some(p)),
    },
    ConfigKey {
        name: "ssl_options.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the private key, not encrypted.",
        set: |c, _, v| path(v).map(|p| c.tls.keyfile = Some(p)),
    },
    ConfigKey {
        name: "ssl_options.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authorities that sign client certificates, which `verify_peer` \
              needs.",
        set: |c, _, v| path(v).map(|p| c.tls.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "ssl_options.verify",
        accepts: "verify_peer or verify_none",
        default: "verify_none",
        doc: "`verify_peer` requests a client certificate, which one of the authorities must have \
              signed.",
        set: |c, _, v| {
            c.tls.verify_peer = match v {
                "verify_peer" => true,
                "verify_none" => false,
                _ => return None,
            };
            Some(())
        },
    },
    ConfigKey {
        name: "ssl_options.fail_if_no_peer_cert",
        accepts: BOOL,
        default: "false",
        doc: "Refuses clients without a certificate, which needs `verify_peer`.",
        set: |c, _, v| parse_bool(v).map(|on| c.tls.fail_if_no_peer_cert = on),
    },
    ConfigKey {
        name: "ssl_options.versions.*",
        accepts: "tlsv1.3 or tlsv1.2",
        default: "",
        doc: "Permitted versions of TLS, one for each number (`ssl_options.versions.1`, ...); \
              both by default.",
        set: |c, place, v| {
            let known = ["tlsv1.2", "tlsv1.3"].into_iter().find(|k| *k == v)?;
            c.tls.versions.insert(place.parse().ok()?, known);
            Some(())
        },
    },
    ConfigKey {
        name: "auth_mechanisms.*",
        accepts: "PLAIN, AMQPLAIN, ANONYMOUS or EXTERNAL",
        default: "",
        doc: "Permitted SASL mechanisms, one for each number (`auth_mechanisms.1`, ...), the best \
              first; by default PLAIN, AMQPLAIN and ANONYMOUS, while EXTERNAL uses the client \
              certificate.",
        set: |c, place, v| {
            let mechanism = Mechanism::from_name(v)?;
            c.mechanisms.insert(place.parse().ok()?, mechanism);
            Some(())
        },
    },
    ConfigKey {
        name: "ssl_cert_login_from",
        accepts: "distinguished_name, common_name or subject_alternative_name",
        default: "distinguished_name",
        doc: "Part of a client certificate that names the user, for EXTERNAL and \
              `mqtt.ssl_cert_login`.",
        set: |c, _, v| login_from(c, v),
    },
    ConfigKey {
        name: "ssl_cert_login_san_type",
        accepts: "dns, ip, email, uri or other_name",
        default: "dns",
        doc: "Type of the alternative name, for `subject_alternative_name`.",
        set: |c, _, v| {
            let (_, kind) = SAN_TYPES.iter().find(|(name, _)| *name == v)?;
            c.tls.san_type = *kind;
            alternative_name(c);
            Some(())
        },
    },
    ConfigKey {
        name: "ssl_cert_login_san_index",
        accepts: "0 to 100",
        default: "0",
        doc: "Position of the alternative name among those of its type, from 0.",
        set: |c, _, v| {
            c.tls.san_index = number(v, 0, 100)?;
            alternative_name(c);
            Some(())
        },
    },
    ConfigKey {
        name: "management.ssl.port",
        accepts: LISTEN,
        default: "none",
        doc: "HTTP API with TLS (HTTPS), by convention 15671; `management.tcp.port = none` turns \
              the one without TLS off.",
        set: |c, _, v| Listen::parse(v).map(|l| c.management_tls = l),
    },
    ConfigKey {
        name: "management.ssl.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the certificate of the HTTP API; `ssl_options.certfile` by default.",
        set: |c, _, v| path(v).map(|p| c.management_files.certfile = Some(p)),
    },
    ConfigKey {
        name: "management.ssl.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the private key of the HTTP API; `ssl_options.keyfile` by default.",
        set: |c, _, v| path(v).map(|p| c.management_files.keyfile = Some(p)),
    },
    ConfigKey {
        name: "operator.ssl.port",
        accepts: LISTEN,
        default: "none",
        doc: "HTTP API for an operator that logs in with a certificate, by convention 15670, which needs `operator.ssl.cacertfile`.",
        set: |c, _, v| Listen::parse(v).map(|l| c.operator.listener = l),
    },
    ConfigKey {
        name: "operator.ssl.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authority that signs only the operator's certificates.",
        set: |c, _, v| path(v).map(|p| c.operator.files.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "operator.ssl.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the certificate of this listener; `ssl_options.certfile` by default.",
        set: |c, _, v| path(v).map(|p| c.operator.files.certfile = Some(p)),
    },
    ConfigKey {
        name: "operator.ssl.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the private key of this listener; `ssl_options.keyfile` by default.",
        set: |c, _, v| path(v).map(|p| c.operator.files.keyfile = Some(p)),
    },
    ConfigKey {
        name: "operator.certificate_name",
        accepts: "a name of 1 to 255 bytes",
        default: "operator",
        doc: "Common name of the operator's certificate.",
        set: |c, _, v| filled(v).map(|n| c.operator.certificate_name = n),
    },
    ConfigKey {
        name: "prometheus.ssl.port",
        accepts: LISTEN,
        default: "none",
        doc: "Metrics with TLS, by convention 15691; `prometheus.tcp.port = none` turns those \
              without TLS off.",
        set: |c, _, v| Listen::parse(v).map(|l| c.prometheus_tls = l),
    },
    ConfigKey {
        name: "prometheus.ssl.certfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the certificate of the metrics; `ssl_options.certfile` by default.",
        set: |c, _, v| path(v).map(|p| c.prometheus_files.certfile = Some(p)),
    },
    ConfigKey {
        name: "prometheus.ssl.keyfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the private key of the metrics; `ssl_options.keyfile` by default.",
        set: |c, _, v| path(v).map(|p| c.prometheus_files.keyfile = Some(p)),
    },
];
