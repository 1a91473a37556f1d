//! Topic aliases (section 3.3.2.3.4). They end with their connection [MQTT-3.3.2-7].

use codec_mqtt::ReasonCode;

/// Topic aliases set by the client, indexed by alias - 1.
#[derive(Debug, Default)]
pub(crate) struct InboundAliases(Vec<Option<Box<str>>>);

impl InboundAliases {
    pub(crate) const NONE: InboundAliases = InboundAliases(Vec::new());

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the topic of a publish, which is named explicitly or by an alias.
    pub(crate) fn resolve<'a>(
        &'a mut self,
        topic: &'a str,
        alias: Option<u16>,
        maximum: u16,
    ) -> Result<&'a str, (ReasonCode, &'static str)> {
        let Some(alias) = alias else {
            return Ok(topic);
        };
        if alias > maximum {
            return Err((
                ReasonCode::TopicAliasInvalid,
                "topic alias above the maximum that was agreed",
            ));
        }
        let at = usize::from(alias).saturating_sub(1);
        if topic.is_empty() {
            let known = self.0.get(at).and_then(Option::as_deref);
            return known.ok_or((ReasonCode::ProtocolError, "topic alias stands for no topic"));
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

/// Topic aliases set by the server, assigned to the first topics that it sends.
#[derive(Debug)]
pub(crate) struct OutboundAliases(Vec<Box<[u8]>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alias {
    None,
    /// The client knows the alias, so the topic is omitted.
    Known(u16),
    /// A new alias to send together with the topic, followed by [`OutboundAliases::add_topic`].
    New(u16),
}

impl OutboundAliases {
    pub(crate) const NONE: OutboundAliases = OutboundAliases(Vec::new());

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the alias of a topic. `maximum` is the client's Topic Alias Maximum.
    pub(crate) fn of(&self, topic: &[u8], maximum: u16) -> Alias {
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

    pub(crate) fn add_topic(&mut self, topic: &[u8]) {
        self.0.push(topic.into());
    }
}
