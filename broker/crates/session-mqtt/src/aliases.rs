//! Topic aliases (section 3.3.2.3.4). They are the connection's: none outlives it [MQTT-3.3.2-7].

use codec_mqtt::Reason;

/// The client's, by number less one.
#[derive(Debug, Default)]
pub(crate) struct InboundAliases(Vec<Option<Box<str>>>);

impl InboundAliases {
    pub const NONE: InboundAliases = InboundAliases(Vec::new());

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The topic of a publish: what it names, or what its alias stands for.
    pub fn resolve<'a>(
        &'a mut self,
        topic: &'a str,
        alias: Option<u16>,
        maximum: u16,
    ) -> Result<&'a str, (Reason, &'static str)> {
        let Some(alias) = alias else {
            return Ok(topic);
        };
        if alias > maximum {
            return Err((
                Reason::TopicAliasInvalid,
                "topic alias above the maximum that was agreed",
            ));
        }
        let at = usize::from(alias).saturating_sub(1);
        if topic.is_empty() {
            let known = self.0.get(at).and_then(Option::as_deref);
            return known.ok_or((Reason::ProtocolError, "topic alias stands for no topic"));
        }
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        if let Some(slot) = self.0.get_mut(at)
            && slot.as_deref() != Some(topic)
        {
            *slot = Some(topic.into());
        }
        Ok(topic)
    }
}

/// Ours. The first topics get one each.
#[derive(Debug)]
pub(crate) struct OutboundAliases(Vec<Box<str>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alias {
    None,
    /// The client has been told: the topic can be left out.
    Known(u16),
    /// To be told with the topic; then [`OutboundAliases::told`].
    New(u16),
}

impl OutboundAliases {
    pub const NONE: OutboundAliases = OutboundAliases(Vec::new());

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `maximum`: what the client takes.
    pub fn of(&self, topic: &str, maximum: u16) -> Alias {
        if maximum == 0 {
            return Alias::None;
        }
        let number = |at: usize| at as u16 + 1;
        match self.0.iter().position(|known| **known == *topic) {
            Some(at) => Alias::Known(number(at)),
            None if self.0.len() < usize::from(maximum) => Alias::New(number(self.0.len())),
            None => Alias::None,
        }
    }

    pub fn told(&mut self, topic: &str) {
        self.0.push(topic.into());
    }
}
