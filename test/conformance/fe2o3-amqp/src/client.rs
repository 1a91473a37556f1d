//! A connection with a pair of management links.

use crate::Result;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::{Fields, SenderSettleMode};
use fe2o3_amqp::types::messaging::{
    AmqpValue, Message, MessageId, Outcome, Properties, Source, Target,
};
use fe2o3_amqp::types::primitives::{OrderedMap, Symbol, Value};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};
use std::sync::atomic::{AtomicU32, Ordering};

pub const URL: &str = "amqp://guest:guest@127.0.0.1:5672";

/// A name that this run has not used.
pub fn fresh(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

pub fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

pub fn map(entries: Vec<(&str, Value)>) -> Value {
    let mut map = OrderedMap::new();
    for (key, value) in entries {
        map.insert(text(key), value);
    }
    Value::Map(map)
}

/// The value of a key in a map.
pub fn field(map: &Value, key: &str) -> Option<Value> {
    match map {
        Value::Map(map) => map.get(&text(key)).cloned(),
        _ => None,
    }
}

pub struct Client {
    pub connection: ConnectionHandle<()>,
    pub session: SessionHandle<()>,
    requests: Sender,
    responses: Receiver,
    next: u64,
}

impl Client {
    pub async fn open() -> Result<Client> {
        let mut connection = Connection::open(fresh("container"), URL).await?;
        let mut session = Session::begin(&mut connection).await?;
        let mut paired = Fields::new();
        paired.insert(Symbol::from("paired"), Value::Bool(true));
        let name = fresh("management");
        let requests = Sender::builder()
            .name(name.clone())
            .sender_settle_mode(SenderSettleMode::Settled)
            .source(Source::builder().address("me").build())
            .target(Target::builder().address("/management").build())
            .properties(paired.clone())
            .attach(&mut session)
            .await?;
        let responses = Receiver::builder()
            .name(name)
            .sender_settle_mode(SenderSettleMode::Settled)
            .source(Source::builder().address("/management").build())
            .target(Target::builder().address("me").build())
            .properties(paired)
            .attach(&mut session)
            .await?;
        Ok(Client {
            connection,
            session,
            requests,
            responses,
            next: 0,
        })
    }

    pub async fn close(mut self) -> Result {
        self.session.end().await?;
        self.connection.close().await?;
        Ok(())
    }

    /// Sends a request to the management node; returns the status and the body.
    pub async fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Value,
    ) -> Result<(String, Value)> {
        self.next += 1;
        let id = MessageId::Ulong(self.next);
        let properties = Properties::builder()
            .message_id(id.clone())
            .to(path.to_owned())
            .subject(method)
            .reply_to("$me".to_owned())
            .build();
        let request = Message::builder()
            .properties(properties)
            .value(body)
            .build();
        self.requests.send(request).await?;
        let delivery = self.responses.recv::<AmqpValue<Value>>().await?;
        let properties = delivery
            .message()
            .properties
            .clone()
            .ok_or("a response without properties")?;
        if properties.correlation_id != Some(id) {
            return Err(format!("correlation id {:?}", properties.correlation_id).into());
        }
        Ok((
            properties.subject.ok_or("no status")?,
            delivery.into_body().0,
        ))
    }

    pub async fn call(
        &mut self,
        status: &str,
        method: &str,
        path: &str,
        body: Value,
    ) -> Result<Value> {
        let (got, body) = self.request(method, path, body).await?;
        match got == status {
            true => Ok(body),
            false => Err(format!("{method} {path}: {got} {body:?}").into()),
        }
    }

    /// Declares a queue; returns its address.
    pub async fn queue(&mut self, kind: &str, arguments: Vec<(&str, Value)>) -> Result<String> {
        let path = format!("/queues/{}", fresh(kind));
        let mut all = arguments;
        all.push(("x-queue-type", text(kind)));
        self.call("201", "PUT", &path, map(vec![("arguments", map(all))]))
            .await?;
        Ok(path)
    }

    pub async fn count(&mut self, queue: &str) -> Result<u64> {
        let status = self.call("200", "GET", queue, Value::Null).await?;
        match field(&status, "message_count") {
            Some(Value::Ulong(count)) => Ok(count),
            other => Err(format!("message_count: {other:?}").into()),
        }
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
