//! The listeners of a node as text for its log.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Names and addresses, such as `amqp 127.0.0.1:5672, management 127.0.0.1:15672`.
pub(crate) fn listeners(ports: &[(&str, SocketAddr)]) -> String {
    let texts = ports
        .iter()
        .map(|(name, address)| format!("{name} {address}"));
    texts.collect::<Vec<_>>().join(", ")
}

/// The address of the web UI in a browser on the node's machine; `none` without a listener.
pub(crate) fn web_ui(ports: &[(&str, SocketAddr)]) -> String {
    let of = |wanted: &str| ports.iter().find(|(name, _)| *name == wanted);
    let found = of("management/ssl").map(|(_, address)| ("https", *address));
    let found = found.or_else(|| of("management").map(|(_, address)| ("http", *address)));
    match found {
        Some((scheme, mut address)) => {
            if address.ip().is_unspecified() {
                address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
            }
            format!("{scheme}://{address}/")
        }
        None => "none".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &'static str, address: &str) -> (&'static str, SocketAddr) {
        (name, address.parse().expect("an address"))
    }

    #[test]
    fn web_ui_has_an_address_that_a_browser_can_open() {
        let amqp = port("amqp", "127.0.0.1:5672");
        let plain = port("management", "0.0.0.0:15672");
        let secure = port("management/ssl", "[::1]:15671");
        assert_eq!(web_ui(&[amqp]), "none");
        assert_eq!(web_ui(&[amqp, plain]), "http://127.0.0.1:15672/");
        assert_eq!(web_ui(&[plain, secure]), "https://[::1]:15671/");
        assert_eq!(
            listeners(&[amqp, secure]),
            "amqp 127.0.0.1:5672, management/ssl [::1]:15671"
        );
    }
}
