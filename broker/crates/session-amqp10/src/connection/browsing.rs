//! Links that browse: their turns, pages and ends.

use super::{Amqp10Session, Link};
use crate::browse::{BrowseEnd, Browser, MAX_PAGES};
use crate::refusal::Refusal;
use crate::state::{ConnectionState, StepContext};
use amqp10::{Connection, SendError};
use codec_amqp10::Condition;
use metadata::QueueId;
use session::BrowseAnswer;

impl Amqp10Session {
    /// Serves the links that browse.
    #[cold]
    pub(super) fn run_browsers(&mut self, cx: &mut StepContext<'_>) {
        let all = self.browsers.take_turn();
        let waiting = self.run_some_browsers(all, cx);
        // Those behind them may have sent their pages.
        self.run_some_browsers(waiting, cx);
    }

    /// Serves links that browse. Returns those that wait for others to send their pages.
    fn run_some_browsers(&mut self, numbers: Vec<u32>, cx: &mut StepContext<'_>) -> Vec<u32> {
        let has_page = |this: &Self, number| match this.links.get(&number) {
            Some(Link::Browser(browser)) => browser.has_page(),
            _ => false,
        };
        let mut pages = self.browsers().filter(|browser| browser.has_page()).count();
        let mut waiting = Vec::new();
        for number in numbers {
            pages -= usize::from(has_page(self, number));
            let may_request = pages < MAX_PAGES;
            self.with_browser(number, cx, |browser, engine, state, cx| {
                browser.run(may_request, engine, state, cx)
            });
            pages += usize::from(has_page(self, number));
            let waits = match self.links.get(&number) {
                Some(Link::Browser(browser)) => browser.waits_for_page(),
                _ => false,
            };
            waiting.extend(waits.then_some(number));
        }
        debug_assert!(pages <= MAX_PAGES, "{pages}");
        waiting
    }

    /// Runs a step of a link that browses. An error ends the link.
    fn with_browser(
        &mut self,
        number: u32,
        cx: &mut StepContext<'_>,
        step: impl FnOnce(
            &mut Browser,
            &mut Connection,
            &mut ConnectionState,
            &mut StepContext<'_>,
        ) -> Result<(), BrowseEnd>,
    ) {
        let Some(Link::Browser(browser)) = self.links.get_mut(&number) else {
            return;
        };
        let link = browser.link;
        match step(browser, &mut self.engine, &mut self.state, cx) {
            Ok(()) => {}
            Err(BrowseEnd::Deleted) => {
                let refusal = self.source_deleted();
                self.detach(link, &refusal, cx);
            }
            Err(BrowseEnd::Refused(refusal)) => self.detach(link, &refusal, cx),
            Err(BrowseEnd::Send(error @ SendError::MessageTooLarge { .. })) => {
                let refusal = Refusal::new(Condition::MessageSizeExceeded, error.to_string());
                self.detach(link, &refusal, cx);
            }
            Err(BrowseEnd::Send(_)) => self.remove_link(number, cx),
        }
    }

    /// Handles a page for a link that browses. It is served at the end of the step.
    pub(super) fn handle_browsed(&mut self, answer: BrowseAnswer, cx: &mut StepContext<'_>) {
        let awaits = |number: &u32| match self.links.get(number) {
            Some(Link::Browser(browser)) => browser.awaits(answer.token),
            _ => false,
        };
        // The link may have ended.
        let number = self.browsers.iter().find(awaits);
        if let Some(number) = number {
            self.with_browser(number, cx, |browser, _, state, cx| {
                browser.handle_answer(answer, state, cx)
            });
        }
    }

    /// Ends the links that browse a queue that was deleted.
    pub(super) fn detach_browsers(&mut self, queue: QueueId, cx: &mut StepContext<'_>) {
        let links = self
            .browsers
            .iter()
            .filter_map(|number| self.links.get(&number));
        let of_queue = links.filter_map(|link| match link {
            Link::Browser(browser) if browser.queue == queue => Some(browser.link),
            _ => None,
        });
        let refusal = self.source_deleted();
        for link in of_queue.collect::<Vec<_>>() {
            self.detach(link, &refusal, cx);
        }
    }

    pub(super) fn browsers(&self) -> impl Iterator<Item = &Browser> {
        let links = self.browsers.iter();
        links.filter_map(|number| match self.links.get(&number) {
            Some(Link::Browser(browser)) => Some(&**browser),
            _ => None,
        })
    }
}
