//! Connections between a [`tls::TlsChannel`] and the client of rustls.
#![forbid(unsafe_code)]

mod pair;

use authority::{Authority, Fixture};
use pair::{Pair, Result, options};
use proptest::prelude::*;
use rustls::{ClientConfig, HandshakeKind};
use std::sync::Arc;
use tls::{
    CertificateLoginSource, ChannelError, ClientVerification, OutgoingBytes, ServerTls, TlsOptions,
    TlsVersions,
};

const REQUIRED: ClientVerification = ClientVerification::Peer { required: true };
const OPTIONAL: ClientVerification = ClientVerification::Peer { required: false };

#[test]
fn both_versions_transfer_data_in_pieces_of_any_size() -> Result<()> {
    let setup = Fixture::new("versions")?;
    let (server, _) = pair::server(&setup, ClientVerification::None)?;
    let long: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
    for (version, name) in [
        (&rustls::version::TLS12, "tlsv1.2"),
        (&rustls::version::TLS13, "tlsv1.3"),
    ] {
        let client = Arc::new(setup.client_of(&[version], None)?);
        for piece in [1, 1000, usize::MAX] {
            let mut pair = Pair::new(&server, &client)?;
            pair.piece = piece;
            pair.run()?;
            assert!(!pair.channel.is_handshaking());
            let peer = server.peer(&pair.channel);
            assert_eq!(peer.protocol, name);
            assert!(peer.cipher.contains("AES"), "{}", peer.cipher);
            assert_eq!((peer.subject, peer.name), (None, None));
            pair.client_sends(&long)?;
            assert_eq!(&pair.plain[..], &long[..]);
            assert_eq!(
                pair.channel.rest(),
                b"",
                "nothing is buffered between records"
            );
            assert_eq!(pair.server_sends(&long)?, long);
        }
    }
    Ok(())
}

#[test]
fn disabled_version_is_refused() -> Result<()> {
    let setup = Fixture::new("old")?;
    let options = TlsOptions {
        versions: TlsVersions {
            tls12: false,
            tls13: true,
        },
        ..options(&setup, ClientVerification::None)
    };
    let (server, _) = ServerTls::load(options)?;
    let old = Arc::new(setup.client_of(&[&rustls::version::TLS12], None)?);
    let error = Pair::connect(&server, &old)
        .err()
        .ok_or("the handshake succeeded")?;
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    let new = Arc::new(setup.client_of(&[&rustls::version::TLS13], None)?);
    Pair::connect(&server, &new)?;
    Ok(())
}

#[test]
fn either_side_may_send_close_notify() -> Result<()> {
    let setup = Fixture::new("end")?;
    let (server, _) = pair::server(&setup, ClientVerification::None)?;
    let client = Arc::new(setup.client(None)?);
    let mut pair = Pair::connect(&server, &client)?;
    pair.client_sends(b"the last")?;
    pair.client.send_close_notify();
    assert!(!pair.ended);
    pair.run()?;
    assert!(pair.ended);
    assert_eq!(&pair.plain[..], b"the last");
    // The other direction stays open.
    assert_eq!(pair.server_sends(b"goodbye")?, b"goodbye");

    let mut pair = Pair::connect(&server, &client)?;
    pair.channel.end(&mut pair.out);
    assert!(!pair.client_ended);
    pair.run()?;
    assert!(pair.client_ended);
    Ok(())
}

#[test]
fn plain_text_is_answered_with_an_alert() -> Result<()> {
    let setup = Fixture::new("plain")?;
    let (server, _) = pair::server(&setup, ClientVerification::None)?;
    for text in [&b"AMQP\0\0\x09\x01"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let client = Arc::new(setup.client(None)?);
        let mut pair = Pair::new(&server, &client)?;
        let error = pair.give_server(text).err().ok_or("accepted as TLS")?;
        assert!(matches!(error, ChannelError::Tls(_)), "{error}");
        // Content type 21, level fatal (2).
        assert_eq!(pair.out.filled().first(), Some(&21));
        assert_eq!(pair.out.filled().get(5), Some(&2));
    }
    Ok(())
}

#[test]
fn corrupt_record_ends_the_connection() -> Result<()> {
    let setup = Fixture::new("damaged")?;
    let (server, _) = pair::server(&setup, ClientVerification::None)?;
    let client = Arc::new(setup.client(None)?);
    let mut pair = Pair::connect(&server, &client)?;
    std::io::Write::write_all(&mut pair.client.writer(), b"hello")?;
    let mut wire = Vec::new();
    pair.client.write_tls(&mut wire)?;
    *wire.last_mut().ok_or("empty")? ^= 1;
    assert!(pair.give_server(&wire).is_err());
    assert!(pair.plain.is_empty());
    assert!(!pair.out.is_empty(), "an alert is sent");
    Ok(())
}

#[test]
fn incomplete_input_is_limited() -> Result<()> {
    let setup = Fixture::new("bounded")?;
    let (server, _) = pair::server(&setup, ClientVerification::None)?;
    let client = Arc::new(setup.client(None)?);
    // A record that announces more than the maximum length.
    let mut pair = Pair::new(&server, &client)?;
    assert!(pair.give_server(&[22, 3, 1, 0x50, 0]).is_err());
    // A ClientHello of 60,000 bytes in one-byte records, each with a header of five bytes.
    let mut pair = Pair::new(&server, &client)?;
    let mut hello = vec![1, 0, 0xea, 0x60];
    hello.resize(60_000, 0);
    let wire: Vec<u8> = hello.iter().flat_map(|b| [22, 3, 1, 0, 1, *b]).collect();
    pair.piece = 4096;
    let error = pair
        .give_server(&wire)
        .err()
        .ok_or("all input was buffered")?;
    assert!(matches!(error, ChannelError::TooLong(_)), "{error}");
    assert!(pair.channel.rest().len() < 100_000);
    Ok(())
}

#[test]
fn sessions_resume_only_without_client_certificates() -> Result<()> {
    let setup = Fixture::new("resumption")?;
    for (verify, expected) in [
        (ClientVerification::None, HandshakeKind::Resumed),
        (OPTIONAL, HandshakeKind::Full),
    ] {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let (server, _) = pair::server(&setup, verify)?;
            let client = Arc::new(setup.client_of(&[version], None)?);
            let mut first = Pair::connect(&server, &client)?;
            first.server_sends(b"and a ticket")?;
            assert_eq!(first.client.handshake_kind(), Some(HandshakeKind::Full));
            let mut second = Pair::connect(&server, &client)?;
            assert_eq!(second.client.handshake_kind(), Some(expected), "{verify:?}");
            assert_eq!(second.server_sends(b"again")?, b"again");
        }
    }
    Ok(())
}

#[test]
fn client_certificate_gives_the_user_name() -> Result<()> {
    let setup = Fixture::new("names")?;
    let (server, _) = pair::server(&setup, REQUIRED)?;
    let with_certificate = Arc::new(setup.client(Some((&setup.authority, "client-7")))?);
    let pair = Pair::connect(&server, &with_certificate)?;
    let peer = server.peer(&pair.channel);
    assert_eq!(peer.subject.as_deref(), Some("CN=client-7"));
    assert_eq!(peer.name.as_deref(), Some("CN=client-7"));

    let options = TlsOptions {
        login_from: CertificateLoginSource::CommonName,
        ..options(&setup, OPTIONAL)
    };
    let (server, _) = ServerTls::load(options)?;
    let pair = Pair::connect(&server, &with_certificate)?;
    assert_eq!(server.peer(&pair.channel).name.as_deref(), Some("client-7"));
    let without = Arc::new(setup.client(None)?);
    let pair = Pair::connect(&server, &without)?;
    assert_eq!(server.peer(&pair.channel).subject, None);
    Ok(())
}

#[test]
fn missing_or_untrusted_client_certificate_is_refused() -> Result<()> {
    let setup = Fixture::new("refused")?;
    let other = Authority::new("Another Authority")?;
    let missing = setup.client(None)?;
    let foreign = setup.client(Some((&other, "client-7")))?;
    let (required, _) = pair::server(&setup, REQUIRED)?;
    let (optional, _) = pair::server(&setup, OPTIONAL)?;
    let (none, _) = pair::server(&setup, ClientVerification::None)?;
    for (server, client, accepted) in [
        (&required, &missing, false),
        (&required, &foreign, false),
        (&optional, &missing, true),
        (&optional, &foreign, false),
        (&none, &foreign, true),
    ] {
        let pair = Pair::connect(server, &Arc::new(client.clone()));
        assert_eq!(pair.is_ok(), accepted, "{:?}", pair.err());
        if let Ok(pair) = pair {
            assert_eq!(server.peer(&pair.channel).name, None);
        }
    }
    Ok(())
}

fn serial_of(pair: &Pair) -> Vec<u8> {
    let certificates = pair.client.peer_certificates().unwrap_or_default();
    certificates.first().map(|c| c.to_vec()).unwrap_or_default()
}

#[test]
fn changed_files_apply_to_new_connections_unless_invalid() -> Result<()> {
    let setup = Fixture::new("rotate")?;
    let (server, mut watched) = pair::server(&setup, ClientVerification::None)?;
    let client = || setup.client(None).map(Arc::new);
    let mut before = Pair::connect(&server, &client()?)?;
    setup.issue_server()?;
    watched.reload_if_changed();
    let after = Pair::connect(&server, &client()?)?;
    assert_ne!(serial_of(&before), serial_of(&after));
    // Decades in the future, and of the certificate in use.
    let expiry = server.expires();
    assert!((4_000_000_000..u64::MAX).contains(&expiry), "{expiry}");
    assert_eq!(before.server_sends(b"goes on")?, b"goes on");

    // Only one of the two files is replaced: the key does not match the certificate.
    let next = setup.authority.issue("server", &["localhost"])?;
    setup.dir.write("key.pem", &next.key)?;
    watched.reload_if_changed();
    let still = Pair::connect(&server, &client()?)?;
    assert_eq!(serial_of(&after), serial_of(&still));
    setup.dir.write("cert.pem", &next.certificate)?;
    watched.reload_if_changed();
    let last = Pair::connect(&server, &client()?)?;
    assert_ne!(serial_of(&after), serial_of(&last));

    std::fs::remove_file(setup.path("cert.pem"))?;
    watched.reload_if_changed();
    watched.reload_if_changed();
    let still = Pair::connect(&server, &client()?)?;
    assert_eq!(serial_of(&last), serial_of(&still));
    Ok(())
}

#[test]
fn new_client_authority_replaces_the_old_one() -> Result<()> {
    let setup = Fixture::new("authorities")?;
    let (server, mut watched) = pair::server(&setup, REQUIRED)?;
    let next = Authority::new("Next Authority")?;
    let old_client = Arc::new(setup.client(Some((&setup.authority, "a")))?);
    let new_client = Arc::new(setup.client(Some((&next, "a")))?);
    Pair::connect(&server, &old_client)?;
    assert!(Pair::connect(&server, &new_client).is_err());
    setup.dir.write("ca.pem", next.pem())?;
    watched.reload_if_changed();
    assert!(Pair::connect(&server, &old_client).is_err());
    Pair::connect(&server, &new_client)?;
    Ok(())
}

#[test]
fn load_errors_name_the_file_and_the_cause() -> Result<()> {
    let setup = Fixture::new("errors")?;
    let load = |options: TlsOptions| ServerTls::load(options).err().map(|e| e.to_string());
    let other = setup.authority.issue("other", &[])?;
    let other_key = setup.dir.write("other-key.pem", &other.key)?;
    let mismatch = load(TlsOptions {
        keyfile: other_key,
        ..options(&setup, ClientVerification::None)
    });
    let text = mismatch.ok_or("loaded")?;
    assert!(text.contains("other-key.pem: not the key of"), "{text}");
    let missing = load(TlsOptions {
        cacertfile: Some(setup.path("nowhere.pem")),
        ..options(&setup, REQUIRED)
    });
    let text = missing.ok_or("loaded")?;
    assert!(text.contains("nowhere.pem: No such file"), "{text}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A client that behaves correctly up to some byte, followed by arbitrary bytes.
    #[test]
    fn arbitrary_bytes_neither_panic_nor_accumulate(
        at in 0usize..2000,
        noise in proptest::collection::vec(any::<u8>(), 0..3000),
        piece in 1usize..500,
        done in any::<bool>(),
    ) {
        let fixture = fixture();
        let mut pair = match done {
            true => Pair::connect(&fixture.0, &fixture.1).expect("a handshake"),
            false => Pair::new(&fixture.0, &fixture.1).expect("a connection"),
        };
        std::io::Write::write_all(&mut pair.client.writer(), &[7; 1000]).expect("room");
        let mut wire = Vec::new();
        while pair.client.wants_write() {
            pair.client.write_tls(&mut wire).expect("into memory");
        }
        wire.truncate(at);
        wire.extend_from_slice(&noise);
        pair.piece = piece;
        let _ = pair.give_server(&wire);
        prop_assert!(pair.channel.rest().len() <= 80 << 10);
        prop_assert!(pair.plain.len() <= 1000);
        // Output may still be requested after an error.
        let _ = pair.channel.seal(b"x", &mut OutgoingBytes::default());
        pair.channel.end(&mut OutgoingBytes::default());
    }
}

/// One server and client for all cases, because key generation is slow.
fn fixture() -> &'static (Arc<ServerTls>, Arc<ClientConfig>) {
    static FIXTURE: std::sync::OnceLock<(Arc<ServerTls>, Arc<ClientConfig>)> =
        std::sync::OnceLock::new();
    FIXTURE.get_or_init(|| {
        let setup = Fixture::new("noise").expect("files");
        let (server, _) = pair::server(&setup, ClientVerification::None).expect("a server");
        let client = setup.client(None).expect("a client");
        (server, Arc::new(client))
    })
}
