//! Connections between a channel and rustls's own client.
#![forbid(unsafe_code)]

mod pair;

use authority::{Authority, Fixture};
use pair::{Pair, Result, options};
use proptest::prelude::*;
use rustls::{ClientConfig, HandshakeKind};
use std::sync::Arc;
use tls::{ChannelError, LoginFrom, Options, Outgoing, Server, Verify, Versions};

const REQUIRED: Verify = Verify::Peer { required: true };
const OPTIONAL: Verify = Verify::Peer { required: false };

#[test]
fn both_versions_carry_data_both_ways_however_it_is_cut() -> Result<()> {
    let setup = Fixture::new("versions")?;
    let (server, _) = pair::server(&setup, Verify::None)?;
    let long: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
    for (wanted, name) in [
        (&rustls::version::TLS12, "tlsv1.2"),
        (&rustls::version::TLS13, "tlsv1.3"),
    ] {
        let client = Arc::new(setup.client_of(&[wanted], None)?);
        for piece in [1, 1000, usize::MAX] {
            let mut pair = Pair::new(&server, &client)?;
            pair.piece = piece;
            pair.run()?;
            assert!(!pair.channel.is_handshaking());
            let peer = server.peer(&pair.channel);
            assert_eq!(peer.protocol, name);
            assert!(peer.cipher.contains("AES"), "{}", peer.cipher);
            assert_eq!((peer.subject, peer.name), (None, None));
            pair.client_says(&long)?;
            assert_eq!(&pair.plain[..], &long[..]);
            assert_eq!(pair.channel.rest(), b"", "nothing is kept between records");
            assert_eq!(pair.server_says(&long)?, long);
        }
    }
    Ok(())
}

#[test]
fn a_version_that_is_switched_off_is_refused() -> Result<()> {
    let setup = Fixture::new("old")?;
    let options = Options {
        versions: Versions {
            tls12: false,
            tls13: true,
        },
        ..options(&setup, Verify::None)
    };
    let (server, _) = Server::load(options)?;
    let old = Arc::new(setup.client_of(&[&rustls::version::TLS12], None)?);
    let error = Pair::shaken(&server, &old).err().ok_or("it went through")?;
    assert!(error.to_string().contains("ProtocolVersion"), "{error}");
    let new = Arc::new(setup.client_of(&[&rustls::version::TLS13], None)?);
    Pair::shaken(&server, &new)?;
    Ok(())
}

#[test]
fn either_side_may_say_that_nothing_follows() -> Result<()> {
    let setup = Fixture::new("end")?;
    let (server, _) = pair::server(&setup, Verify::None)?;
    let client = Arc::new(setup.client(None)?);
    let mut pair = Pair::shaken(&server, &client)?;
    pair.client_says(b"the last")?;
    pair.client.send_close_notify();
    assert!(!pair.ended);
    pair.run()?;
    assert!(pair.ended);
    assert_eq!(&pair.plain[..], b"the last");
    // The other direction is still open.
    assert_eq!(pair.server_says(b"goodbye")?, b"goodbye");

    let mut pair = Pair::shaken(&server, &client)?;
    pair.channel.end(&mut pair.out);
    assert!(!pair.told_end);
    pair.run()?;
    assert!(pair.told_end);
    Ok(())
}

#[test]
fn what_is_not_tls_is_answered_with_an_alert() -> Result<()> {
    let setup = Fixture::new("plain")?;
    let (server, _) = pair::server(&setup, Verify::None)?;
    for text in [&b"AMQP\0\0\x09\x01"[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let client = Arc::new(setup.client(None)?);
        let mut pair = Pair::new(&server, &client)?;
        let broken = pair.give(text).err().ok_or("it is TLS?")?;
        assert!(matches!(broken, ChannelError::Tls(_)), "{broken}");
        // Content type 21, a fatal one (2).
        assert_eq!(pair.out.filled().first(), Some(&21));
        assert_eq!(pair.out.filled().get(5), Some(&2));
    }
    Ok(())
}

#[test]
fn a_damaged_record_ends_the_connection() -> Result<()> {
    let setup = Fixture::new("damaged")?;
    let (server, _) = pair::server(&setup, Verify::None)?;
    let client = Arc::new(setup.client(None)?);
    let mut pair = Pair::shaken(&server, &client)?;
    std::io::Write::write_all(&mut pair.client.writer(), b"hello")?;
    let mut wire = Vec::new();
    pair.client.write_tls(&mut wire)?;
    *wire.last_mut().ok_or("empty")? ^= 1;
    assert!(pair.give(&wire).is_err());
    assert!(pair.plain.is_empty());
    assert!(!pair.out.is_empty(), "the client is told");
    Ok(())
}

#[test]
fn what_waits_for_its_end_is_bounded() -> Result<()> {
    let setup = Fixture::new("bounded")?;
    let (server, _) = pair::server(&setup, Verify::None)?;
    let client = Arc::new(setup.client(None)?);
    // A record that says it is longer than any may be.
    let mut pair = Pair::new(&server, &client)?;
    assert!(pair.give(&[22, 3, 1, 0x50, 0]).is_err());
    // A ClientHello of 60,000 bytes in records of one byte: five of header for each.
    let mut pair = Pair::new(&server, &client)?;
    let mut hello = vec![1, 0, 0xea, 0x60];
    hello.resize(60_000, 0);
    let wire: Vec<u8> = hello.iter().flat_map(|b| [22, 3, 1, 0, 1, *b]).collect();
    pair.piece = 4096;
    let broken = pair.give(&wire).err().ok_or("all of it was kept")?;
    assert!(matches!(broken, ChannelError::TooLong(_)), "{broken}");
    assert!(pair.channel.rest().len() < 100_000);
    Ok(())
}

#[test]
fn sessions_are_resumed_unless_clients_show_certificates() -> Result<()> {
    let setup = Fixture::new("resumption")?;
    for (verify, wanted) in [
        (Verify::None, HandshakeKind::Resumed),
        (OPTIONAL, HandshakeKind::Full),
    ] {
        for one in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let (server, _) = pair::server(&setup, verify)?;
            let client = Arc::new(setup.client_of(&[one], None)?);
            let mut first = Pair::shaken(&server, &client)?;
            first.server_says(b"and a ticket")?;
            assert_eq!(first.client.handshake_kind(), Some(HandshakeKind::Full));
            let mut second = Pair::shaken(&server, &client)?;
            assert_eq!(second.client.handshake_kind(), Some(wanted), "{verify:?}");
            assert_eq!(second.server_says(b"again")?, b"again");
        }
    }
    Ok(())
}

#[test]
fn a_certificate_names_its_client() -> Result<()> {
    let setup = Fixture::new("names")?;
    let (server, _) = pair::server(&setup, REQUIRED)?;
    let shows = Arc::new(setup.client(Some((&setup.authority, "client-7")))?);
    let pair = Pair::shaken(&server, &shows)?;
    let peer = server.peer(&pair.channel);
    assert_eq!(peer.subject.as_deref(), Some("CN=client-7"));
    assert_eq!(peer.name.as_deref(), Some("CN=client-7"));

    let options = Options {
        login_from: LoginFrom::CommonName,
        ..options(&setup, OPTIONAL)
    };
    let (server, _) = Server::load(options)?;
    let pair = Pair::shaken(&server, &shows)?;
    assert_eq!(server.peer(&pair.channel).name.as_deref(), Some("client-7"));
    let without = Arc::new(setup.client(None)?);
    let pair = Pair::shaken(&server, &without)?;
    assert_eq!(server.peer(&pair.channel).subject, None);
    Ok(())
}

#[test]
fn a_certificate_that_is_missing_or_of_another_authority_is_refused() -> Result<()> {
    let setup = Fixture::new("refused")?;
    let other = Authority::new("Another Authority")?;
    let missing = setup.client(None)?;
    let foreign = setup.client(Some((&other, "client-7")))?;
    let (required, _) = pair::server(&setup, REQUIRED)?;
    let (optional, _) = pair::server(&setup, OPTIONAL)?;
    let (none, _) = pair::server(&setup, Verify::None)?;
    for (server, client, good) in [
        (&required, &missing, false),
        (&required, &foreign, false),
        (&optional, &missing, true),
        (&optional, &foreign, false),
        (&none, &foreign, true),
    ] {
        let pair = Pair::shaken(server, &Arc::new(client.clone()));
        assert_eq!(pair.is_ok(), good, "{:?}", pair.err());
        if let Ok(pair) = pair {
            assert_eq!(server.peer(&pair.channel).name, None);
        }
    }
    Ok(())
}

fn serial_of(pair: &Pair) -> Vec<u8> {
    let shown = pair.client.peer_certificates().unwrap_or_default();
    shown.first().map(|c| c.to_vec()).unwrap_or_default()
}

#[test]
fn new_files_count_for_new_connections_and_broken_ones_do_not() -> Result<()> {
    let setup = Fixture::new("rotate")?;
    let (server, mut watched) = pair::server(&setup, Verify::None)?;
    let client = || setup.client(None).map(Arc::new);
    let mut before = Pair::shaken(&server, &client()?)?;
    setup.issue_server()?;
    watched.look();
    let after = Pair::shaken(&server, &client()?)?;
    assert_ne!(serial_of(&before), serial_of(&after));
    // Decades away, and read from what is in use.
    let ends = server.expires();
    assert!((4_000_000_000..u64::MAX).contains(&ends), "{ends}");
    assert_eq!(before.server_says(b"goes on")?, b"goes on");

    // Only one of the two files is there yet: the key is not the certificate's.
    let next = setup.authority.issue("server", &["localhost"])?;
    setup.dir.write("key.pem", &next.key)?;
    watched.look();
    let still = Pair::shaken(&server, &client()?)?;
    assert_eq!(serial_of(&after), serial_of(&still));
    setup.dir.write("cert.pem", &next.certificate)?;
    watched.look();
    let last = Pair::shaken(&server, &client()?)?;
    assert_ne!(serial_of(&after), serial_of(&last));

    std::fs::remove_file(setup.path("cert.pem"))?;
    watched.look();
    watched.look();
    let still = Pair::shaken(&server, &client()?)?;
    assert_eq!(serial_of(&last), serial_of(&still));
    Ok(())
}

#[test]
fn a_new_authority_of_clients_replaces_the_old_one() -> Result<()> {
    let setup = Fixture::new("authorities")?;
    let (server, mut watched) = pair::server(&setup, REQUIRED)?;
    let next = Authority::new("Next Authority")?;
    let old_client = Arc::new(setup.client(Some((&setup.authority, "a")))?);
    let new_client = Arc::new(setup.client(Some((&next, "a")))?);
    Pair::shaken(&server, &old_client)?;
    assert!(Pair::shaken(&server, &new_client).is_err());
    setup.dir.write("ca.pem", next.pem())?;
    watched.look();
    assert!(Pair::shaken(&server, &old_client).is_err());
    Pair::shaken(&server, &new_client)?;
    Ok(())
}

#[test]
fn errors_name_the_file_and_what_is_wrong() -> Result<()> {
    let setup = Fixture::new("errors")?;
    let load = |options: Options| Server::load(options).err().map(|e| e.to_string());
    let other = setup.authority.issue("other", &[])?;
    let other_key = setup.dir.write("other-key.pem", &other.key)?;
    let mismatch = load(Options {
        keyfile: other_key,
        ..options(&setup, Verify::None)
    });
    let text = mismatch.ok_or("loaded")?;
    assert!(text.contains("other-key.pem: not the key of"), "{text}");
    let missing = load(Options {
        cacertfile: Some(setup.path("nowhere.pem")),
        ..options(&setup, REQUIRED)
    });
    let text = missing.ok_or("loaded")?;
    assert!(text.contains("nowhere.pem: No such file"), "{text}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A client that behaves up to some byte, and then sends anything.
    #[test]
    fn no_bytes_make_it_panic_or_keep_them(
        at in 0usize..2000,
        noise in proptest::collection::vec(any::<u8>(), 0..3000),
        piece in 1usize..500,
        done in any::<bool>(),
    ) {
        let fixture = fixture();
        let mut pair = match done {
            true => Pair::shaken(&fixture.0, &fixture.1).expect("a handshake"),
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
        let _ = pair.give(&wire);
        prop_assert!(pair.channel.rest().len() <= 80 << 10);
        prop_assert!(pair.plain.len() <= 1000);
        // It may still be asked to say something.
        let _ = pair.channel.seal(b"x", &mut Outgoing::default());
        pair.channel.end(&mut Outgoing::default());
    }
}

/// One server and client for all cases: keys take their time.
fn fixture() -> &'static (Arc<Server>, Arc<ClientConfig>) {
    static FIXTURE: std::sync::OnceLock<(Arc<Server>, Arc<ClientConfig>)> =
        std::sync::OnceLock::new();
    FIXTURE.get_or_init(|| {
        let setup = Fixture::new("noise").expect("files");
        let (server, _) = pair::server(&setup, Verify::None).expect("a server");
        let client = setup.client(None).expect("a client");
        (server, Arc::new(client))
    })
}
