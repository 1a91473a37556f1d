//! A connection, and the HTTP API of the node: the client cannot attach the pair of management links, because a session of it has one
//! link of a name.

use crate::Result;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::messaging::Outcome;
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

pub const URL: &str = "amqp://guest:guest@127.0.0.1:5672";

/// A name that this run has not used.
pub fn fresh(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Sends a request to the HTTP API; returns the status and the body.
fn http(method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut socket = TcpStream::connect("127.0.0.1:15672")?;
    socket.set_read_timeout(Some(crate::checks::PATIENCE))?;
    let length = body.len();
    write!(
        socket,
        "{method} /api/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((status, answer))
}

/// Sends a request that must succeed.
fn call(method: &str, path: &str, body: &str) -> Result<String> {
    match http(method, path, body)? {
        (200..300, answer) => Ok(answer),
        (_, answer) => Err(format!("{method} {path}: {answer}").into()),
    }
}

/// The name of a queue in its address.
pub fn name_of(queue: &str) -> &str {
    queue.trim_start_matches("/queues/")
}

pub struct Client {
    pub connection: ConnectionHandle<()>,
    pub session: SessionHandle<()>,
}

impl Client {
    pub async fn open() -> Result<Client> {
        let mut connection = Connection::open(fresh("container"), URL).await?;
        let session = Session::begin(&mut connection).await?;
        Ok(Client {
            connection,
            session,
        })
    }

    pub async fn close(mut self) -> Result {
        self.session.end().await?;
        self.connection.close().await?;
        Ok(())
    }

    /// Declares a queue; returns its address. The arguments are JSON.
    pub fn queue(&self, kind: &str, arguments: &[(&str, &str)]) -> Result<String> {
        let name = fresh(kind);
        let mut all = format!(r#""x-queue-type":"{kind}""#);
        for (key, value) in arguments {
            all += &format!(r#","{key}":{value}"#);
        }
        let body = format!(r#"{{"durable":true,"arguments":{{{all}}}}}"#);
        call("PUT", &format!("queues/%2F/{name}"), &body)?;
        Ok(format!("/queues/{name}"))
    }

    pub fn delete(&self, queue: &str) -> Result {
        call("DELETE", &format!("queues/%2F/{}", name_of(queue)), "").map(|_| ())
    }

    pub fn exists(&self, queue: &str) -> Result<bool> {
        let (status, _) = http("GET", &format!("queues/%2F/{}", name_of(queue)), "")?;
        Ok(status == 200)
    }

    /// Declares an exchange and binds a queue to it.
    pub fn exchange(&self, kind: &str, queue: &str, key: &str) -> Result<String> {
        let name = fresh("exchange");
        let body = format!(r#"{{"type":"{kind}"}}"#);
        call("PUT", &format!("exchanges/%2F/{name}"), &body)?;
        let binding = format!("bindings/%2F/e/{name}/q/{}", name_of(queue));
        call("POST", &binding, &format!(r#"{{"routing_key":"{key}"}}"#))?;
        Ok(name)
    }

    /// The ready messages of a queue, which are looked at and requeued, because statistics are late.
    pub fn count(&self, queue: &str) -> Result<usize> {
        let path = format!("queues/%2F/{}/get", name_of(queue));
        let body = r#"{"count":1000,"ackmode":"ack_requeue_true","encoding":"auto"}"#;
        Ok(call("POST", &path, body)?
            .matches("\"payload_bytes\"")
            .count())
    }

    pub async fn sender(&mut self, address: &str) -> Result<Sender> {
        Ok(Sender::attach(&mut self.session, fresh("sender"), address).await?)
    }

    pub async fn receiver(&mut self, address: &str, credit: CreditMode) -> Result<Receiver> {
        let receiver = Receiver::builder()
            .name(fresh("receiver"))
            .source(address)
            .credit_mode(credit);
        Ok(receiver.attach(&mut self.session).await?)
    }

    /// Sends texts on a link of their own; each must be accepted.
    pub async fn send(&mut self, address: &str, bodies: &[&str]) -> Result {
        let mut sender = self.sender(address).await?;
        for body in bodies {
            accepted(sender.send((*body).to_owned()).await?)?;
        }
        Ok(sender.close().await?)
    }

    /// Receives and accepts so many texts.
    pub async fn take(&mut self, address: &str, count: usize) -> Result<Vec<String>> {
        let mut receiver = self.receiver(address, CreditMode::Auto(10)).await?;
        let mut bodies = Vec::new();
        for _ in 0..count {
            let delivery = receiver.recv::<String>().await?;
            receiver.accept(&delivery).await?;
            bodies.push(delivery.into_body());
        }
        receiver.close().await?;
        Ok(bodies)
    }
}

/// An error unless the outcome is `accepted`.
pub fn accepted(outcome: Outcome) -> Result {
    match outcome {
        Outcome::Accepted(_) => Ok(()),
        other => Err(format!("outcome {other:?}").into()),
    }
}
