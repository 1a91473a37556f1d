//! The identity in a client's certificate: its subject as text, and the user name for SASL
//! EXTERNAL. Both have RabbitMQ's format, so that existing user names remain valid.

use std::fmt::Write;
use std::net::IpAddr;
use x509_parser::asn1_rs::{Any, FromDer, Tag};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// The part of a certificate that becomes the user name (`ssl_cert_login_from`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CertificateLoginSource {
    /// The whole subject, formatted as in RFC 4514.
    #[default]
    DistinguishedName,
    /// The common name; several are joined with commas.
    CommonName,
    /// A subject alternative name of one type.
    SubjectAlternativeName {
        /// The type of name; other types are skipped.
        kind: SanType,
        /// The index among the names of this type, from 0.
        index: usize,
    },
}

/// Types of subject alternative names (`ssl_cert_login_san_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SanType {
    /// DNS name.
    #[default]
    Dns,
    /// IP address, in text form.
    Ip,
    /// Email address (RFC 822 name).
    Email,
    /// Uniform resource identifier.
    Uri,
    /// Other name, if its value is text.
    OtherName,
}

/// The identity in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateIdentity {
    pub subject: String,
    /// None: the certificate has no such name.
    pub name: Option<String>,
}

/// Extracts the identity. None: the bytes are not a certificate.
pub(crate) fn identify(der: &[u8], from: CertificateLoginSource) -> Option<CertificateIdentity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let subject = distinguished_name(certificate.subject());
    let name = match from {
        CertificateLoginSource::DistinguishedName => Some(subject.clone()),
        CertificateLoginSource::CommonName => common_names(certificate.subject()),
        CertificateLoginSource::SubjectAlternativeName { kind, index } => {
            alternative_name(&certificate, kind, index)
        }
    };
    let name = name.filter(|n| !n.is_empty());
    Some(CertificateIdentity { subject, name })
}

fn common_names(subject: &X509Name<'_>) -> Option<String> {
    let names: Vec<String> = subject
        .iter_common_name()
        .filter_map(|a| text(a.attr_value()))
        .collect();
    (!names.is_empty()).then(|| names.join(","))
}

fn alternative_name(
    certificate: &X509Certificate<'_>,
    kind: SanType,
    index: usize,
) -> Option<String> {
    let names = certificate.subject_alternative_name().ok()??;
    let of_kind = |name: &GeneralName<'_>| match (kind, name) {
        (SanType::Dns, GeneralName::DNSName(name))
        | (SanType::Email, GeneralName::RFC822Name(name))
        | (SanType::Uri, GeneralName::URI(name)) => Some((*name).to_owned()),
        (SanType::Ip, GeneralName::IPAddress(bytes)) => address(bytes),
        (SanType::OtherName, GeneralName::OtherName(_, value)) => other_name(value),
        _ => None,
    };
    let general = &names.value.general_names;
    general.iter().filter_map(of_kind).nth(index)
}

fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    Some(address.ok()?.to_string())
}

/// The string inside `[0] EXPLICIT` (RFC 5280, 4.2.1.6).
fn other_name(value: &[u8]) -> Option<String> {
    let (_, explicit) = Any::from_der(value).ok()?;
    let (_, inner) = Any::from_der(explicit.data).ok()?;
    text(&inner)
}

/// Formats a distinguished name as in RFC 4514: the last attribute comes first.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name
        .iter()
        .map(|set| {
            let attributes: Vec<String> = set.iter().map(attribute).collect();
            attributes.join("+")
        })
        .collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let id = attribute.attr_type().to_id_string();
    let known = TYPES.iter().find(|(oid, _)| *oid == id);
    let value = text(attribute.attr_value()).unwrap_or_default();
    let kind = known.map_or(id.as_str(), |(_, name)| name);
    format!("{kind}={}", escape(&value))
}

/// Attribute types with a short name. Other types are written as numbers.
const TYPES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "SERIALNUMBER"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "TITLE"),
    ("2.5.4.42", "GIVENNAME"),
    ("2.5.4.43", "INITIALS"),
    ("2.5.4.44", "GENERATIONQUALIFIER"),
    ("2.5.4.65", "PSEUDONYM"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "EMAILADDRESS"),
];

/// Decodes a DirectoryString or IA5String. None: the value is not a string.
fn text(value: &Any<'_>) -> Option<String> {
    let bytes = value.data;
    let wide = |unit: usize| {
        let units = bytes.chunks(unit).map(|c| {
            let number = c.iter().fold(0u32, |n, b| n << 8 | u32::from(*b));
            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
        });
        units.collect::<String>()
    };
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        // Used as Latin-1 in practice, despite X.680.
        Tag::T61String => Some(wide(1)),
        Tag::BmpString => Some(wide(2)),
        Tag::UniversalString => Some(wide(4)),
        _ => None,
    }
}

/// Escapes a value as in RFC 4514, 2.4. Other than printable ASCII, bytes of the UTF-8 form are
/// written in hexadecimal.
fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (i, byte) in value.bytes().enumerate() {
        match byte {
            b' ' | b'#' if i == 0 => out.extend(['\\', char::from(byte)]),
            b' ' if i == last => out.push_str("\\ "),
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => {
                out.extend(['\\', char::from(byte)]);
            }
            32..126 => out.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType as San};

    type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

    fn certificate(names: &[(DnType, &str)], sans: Vec<San>) -> Result<Vec<u8>> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.subject_alt_names = sans;
        let key = KeyPair::generate()?;
        Ok(params.self_signed(&key)?.der().to_vec())
    }

    fn name(der: &[u8], from: CertificateLoginSource) -> Option<String> {
        identify(der, from).and_then(|i| i.name)
    }

    #[test]
    fn subject_is_formatted_as_in_rabbitmq() -> Result<()> {
        let der = certificate(
            &[
                (DnType::CountryName, "DE"),
                (DnType::OrganizationName, "Horn, Söhne"),
                (DnType::CommonName, "client-1"),
                (DnType::CustomDnType(vec![1, 2, 3, 4]), "#x "),
            ],
            Vec::new(),
        )?;
        let expected = "1.2.3.4=\\#x\\ ,CN=client-1,O=Horn\\, S\\C3\\B6hne,C=DE";
        let identity =
            identify(&der, CertificateLoginSource::DistinguishedName).ok_or("no certificate")?;
        assert_eq!(identity.subject, expected);
        assert_eq!(identity.name.as_deref(), Some(expected));
        assert_eq!(
            name(&der, CertificateLoginSource::CommonName).as_deref(),
            Some("client-1")
        );
        Ok(())
    }

    #[test]
    fn names_are_extracted_by_type_and_index() -> Result<()> {
        let der = certificate(
            &[],
            vec![
                San::DnsName("a.example".try_into()?),
                San::Rfc822Name("me@example".try_into()?),
                San::DnsName("b.example".try_into()?),
                San::URI("spiffe://example/client".try_into()?),
                San::IpAddress("10.1.2.3".parse()?),
                San::IpAddress("2001:db8::1".parse()?),
                San::OtherName((vec![1, 3, 6, 1, 4, 1, 311, 20, 2, 3], "upn@example".into())),
            ],
        )?;
        let san = |kind, index| {
            name(
                &der,
                CertificateLoginSource::SubjectAlternativeName { kind, index },
            )
        };
        for (kind, index, expected) in [
            (SanType::Dns, 0, Some("a.example")),
            (SanType::Dns, 1, Some("b.example")),
            (SanType::Dns, 2, None),
            (SanType::Email, 0, Some("me@example")),
            (SanType::Uri, 0, Some("spiffe://example/client")),
            (SanType::Ip, 0, Some("10.1.2.3")),
            (SanType::Ip, 1, Some("2001:db8::1")),
            (SanType::OtherName, 0, Some("upn@example")),
        ] {
            assert_eq!(san(kind, index).as_deref(), expected, "{kind:?} {index}");
        }
        assert_eq!(name(&der, CertificateLoginSource::CommonName), None);
        assert_eq!(
            name(&der, CertificateLoginSource::DistinguishedName),
            None,
            "an empty name is no name"
        );
        Ok(())
    }

    #[test]
    fn wide_strings_are_decoded() -> Result<()> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        let wide = rcgen::DnValue::BmpString("Ünï".try_into()?);
        params.distinguished_name.push(DnType::CommonName, wide);
        let key = KeyPair::generate()?;
        let der = params.self_signed(&key)?.der().to_vec();
        assert_eq!(
            name(&der, CertificateLoginSource::CommonName).as_deref(),
            Some("Ünï")
        );
        Ok(())
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(der: Vec<u8>) {
            prop_assert_eq!(identify(&der, CertificateLoginSource::CommonName), None);
        }

        #[test]
        fn escaped_value_contains_no_separator(value in "\\PC{0,20}") {
            let text = escape(&value);
            prop_assert!(text.is_ascii());
            let mut rest = text.chars();
            while let Some(c) = rest.next() {
                prop_assert!(!",+;<>\"".contains(c));
                if c == '\\' {
                    rest.next();
                }
            }
        }
    }
}
