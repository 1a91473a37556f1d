// The messages of a queue without consuming them: a listing, and operations that delete, move and redrive messages.
import { html, useState } from '../dom.js';
import { path, withQuery } from '../client.js';
import * as format from '../format.js';
import { Form } from '../form.js';
import { Action, Folded, Problem, State } from '../parts.js';
import { contains } from '../payload.js';
import { client } from '../session.js';
import { MAX_PAYLOAD, Message, ViewChoice } from './messages.js';

/** Maximum number of messages of one request. */
const MAX_BATCH = 100;

/** Messages that stayed, by the member of an outcome that counts them. */
const STAYED = [
  ['missing', 'not in the queue any more, or not ready'],
  ['not_ready', 'unacknowledged, or delayed and not chosen'],
  ['unroutable', 'not routed to any queue'],
  ['without_history', 'never dead-lettered'],
  ['without_queue', 'dead-lettered first by a queue that does not exist, or by this one'],
  ['refused', 'refused by the target'],
  ['pending', 'not confirmed by the target yet'],
  ['untried', 'not tried'],
];

/** A sentence about the outcome of a move. Throws it if the move ended early or nothing was moved. */
export function describeOutcome(outcome) {
  const stayed = STAYED.filter(([key]) => outcome[key] > 0).map(([key, why]) => `${format.count(outcome[key])} stayed: ${why}.`);
  const error = outcome.error ? [`The move ended early: ${outcome.error}.`] : [];
  const text = [`${format.count(outcome.moved)} messages are moved.`, ...stayed, ...error].join(' ');
  if (outcome.error || (outcome.moved === 0 && stayed.length > 0)) throw new Error(text);
  return text;
}

/** Adds the counts of another outcome. */
export function addOutcome(total, outcome) {
  const sum = { ...total };
  for (const [key, value] of Object.entries(outcome)) sum[key] = typeof value === 'number' ? (total[key] ?? 0) + value : value;
  return sum;
}

/** Moves messages with as many requests as needed: those at the positions, or the first `count`. */
async function carryOut(address, target, { positions, count }) {
  let total = {};
  const request = async (selected) => {
    const outcome = await client.post(address, { ...target, ...selected });
    total = addOutcome(total, outcome);
    return outcome;
  };
  if (positions) {
    for (let at = 0; at < positions.length && !total.error; at += MAX_BATCH) await request({ positions: positions.slice(at, at + MAX_BATCH) });
    return total;
  }
  let left = count;
  let cursor;
  do {
    const batch = Math.min(left, MAX_BATCH);
    const outcome = await request({ count: batch, cursor });
    left -= batch;
    cursor = outcome.next;
  } while (left > 0 && cursor && !total.error);
  return total;
}

/** `chosen`: positions of messages. `done` is called after messages were moved. */
function Move({ vhost, queue, chosen, done }) {
  const address = path('queues', vhost, queue, 'messages', 'move');
  const submit = async ({ to, which, count }) => {
    const selected = which === 'chosen' ? { positions: chosen } : { count: Number(count) };
    const outcome = await carryOut(address, { destination_queue: to }, selected);
    done();
    return describeOutcome(outcome);
  };
  const which = chosen.length > 0 ? [['chosen', `the ${format.count(chosen.length)} chosen messages`]] : [];
  return html`<${Form} key=${which.length} label="Move messages" verb="Move messages" submit=${submit} stays fields=${[
    { name: 'to', label: 'To queue', required: true, hint: 'A message leaves this queue once the other one has confirmed it.' },
    { name: 'which', label: 'Messages', type: 'select', options: [...which, ['first', 'the first messages of the queue']] },
    { name: 'count', label: 'Number', type: 'number', min: 1, value: '1', required: true, when: (values) => values.which !== 'chosen' },
  ]} />`;
}

function Redrive({ vhost, queue, done }) {
  const address = path('queues', vhost, queue, 'messages', 'redrive');
  const submit = async ({ count }) => {
    const outcome = await carryOut(address, {}, { count: Number(count) });
    done();
    return describeOutcome(outcome);
  };
  return html`<${Form} label="Redrive dead letters" verb="Redrive" submit=${submit} stays fields=${[
    {
      name: 'count',
      label: 'Messages',
      type: 'number',
      min: 1,
      value: '1',
      required: true,
      hint: 'Each message goes back to the queue where it was dead-lettered first. Others stay.',
    },
  ]} />`;
}

function Listed({ vhost, queue, message, view, isChosen, choose, done }) {
  const { position, state } = message;
  const isWaiting = state !== 'unacknowledged';
  const remove = async () => {
    await client.delete(path('queues', vhost, queue, 'messages', position));
    done();
  };
  const facts = [
    ['Position', position],
    ['State', html`<${State} of=${state} />`],
    ['Ready at', state === 'delayed' && format.time(message.due_at)],
    ['Received', format.time(message.received_at)],
    ['Failed deliveries', message.delivery_count > 0 && format.count(message.delivery_count)],
  ].filter(([, value]) => value !== false);
  return html`<${Message} of=${message} number=${position} view=${view} queue=${queue} facts=${facts}>
    <label class="choice"><input type="checkbox" checked=${isChosen} disabled=${!isWaiting} onChange=${(event) => choose(event.currentTarget.checked)} /> Choose message ${position}</label>
    ${
      isWaiting &&
      html`<${Action} kind="small danger" does=${remove} done=${`Message ${position} is deleted.`} label=${`Delete message ${position}`}
      ask=${{ title: `Delete message ${position}?`, text: `The message is deleted from queue ${queue}. This cannot be undone.`, verb: 'Delete' }}>Delete</${Action}>`
    }
  </${Message}>`;
}

export function Browse({ vhost, queue }) {
  const [listing, setListing] = useState(null);
  const [chosen, setChosen] = useState([]);
  const [view, setView] = useState('auto');
  const [text, setText] = useState('');
  const [error, setError] = useState(null);
  const address = path('queues', vhost, queue, 'messages');
  const request = (query) => client.get(withQuery(address, { truncate: MAX_PAYLOAD, ...query }));
  const submit = async ({ count, position, state }) => {
    setChosen([]);
    const filter = { position: position.trim(), state };
    setListing({ count, filter, ...(await request({ count, ...filter })) });
  };
  /** Lists the same messages again, without those that left. */
  const refresh = async () => {
    setChosen([]);
    if (listing === null) return;
    try {
      setError(null);
      setListing({ ...listing, ...(await request({ count: Math.min(Math.max(listing.messages.length, 1), 1000), ...listing.filter })) });
    } catch (problem) {
      setError(problem);
    }
  };
  const more = async () => {
    const { messages, next } = await request({ count: listing.count, ...listing.filter, cursor: listing.next });
    setListing({ ...listing, messages: [...listing.messages, ...messages], next });
  };
  const choose = (position) => (isChosen) => setChosen((all) => (isChosen ? [...all, position] : all.filter((one) => one !== position)));
  const found = (listing?.messages ?? []).filter((message) => contains(message, text));
  return html`<${Form} label="Browse messages" verb="Browse messages" submit=${submit} stays fields=${[
    { name: 'count', label: 'Messages', type: 'number', min: 1, max: 1000, value: '20', required: true, hint: 'They stay in the queue, are not marked as redelivered, and consumers are not affected.' },
    {
      name: 'state',
      label: 'State',
      type: 'select',
      options: [
        ['', 'any'],
        ['ready', 'ready'],
        ['unacknowledged', 'unacknowledged'],
        ['delayed', 'delayed'],
      ],
    },
    { name: 'position', label: 'From position', hint: 'Without it, the list begins with the message that is delivered next.' },
  ]} />
    <${Problem} error=${error} />
    <div aria-live="polite">${
      listing &&
      html`<div class="bar"><${ViewChoice} view=${view} set=${setView} />
        <label>Search <input type="search" value=${text} spellcheck="false" autocapitalize="none" aria-label="Search the listed messages" onInput=${(event) => setText(event.currentTarget.value)} /></label>
        <span class="faint" role="status">${found.length} of ${listing.messages.length} listed messages</span></div>
      ${found.map((message) => html`<${Listed} key=${message.position} vhost=${vhost} queue=${queue} message=${message} view=${view} isChosen=${chosen.includes(message.position)} choose=${choose(message.position)} done=${refresh} />`)}
      ${listing.next && html`<p><${Action} does=${more}>List more messages</${Action}></p>`}`
    }</div>
    <${Folded} title="Move messages to another queue"><${Move} vhost=${vhost} queue=${queue} chosen=${chosen} done=${refresh} /></${Folded}>
    <${Folded} title="Redrive dead letters"><${Redrive} vhost=${vhost} queue=${queue} done=${refresh} /></${Folded}>`;
}
