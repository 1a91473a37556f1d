// rhea against Posthorn: what an application does with it, and what it is told when it does it wrong.
'use strict';

const assert = require('node:assert');
const { check, run, until, node } = require('../javascript/checks');
const { connect, connectOver, event, fresh, outcome, rhea } = require('./client');

const KINDS = ['classic', 'quorum'];
const { types } = rhea;

/** A check with a connection, which it closes. */
function checked(name, body) {
  check(name, async () => {
    const client = await connect();
    try {
      await body(client);
    } finally {
      await client.close();
    }
  });
}

/** A check with a connection for each queue type. */
function eachKind(name, body) {
  checked(name, async (client) => {
    for (const kind of KINDS) await body(client, kind);
  });
}

const nameOf = (address) => address.split('/').pop();
const accepted = async (sender, message) => assert.strictEqual((await outcome(sender, message)).name, 'accepted');

// Connections.

checked('open offers capabilities and properties', async ({ connection }) => {
  assert.ok(connection.container_id);
  const { product, version, node: name } = connection.properties;
  assert.strictEqual(product, 'RabbitMQ');
  assert.match(version, /^4\./);
  assert.ok(name);
  assert.ok(connection.offered_capabilities.includes('ANONYMOUS-RELAY'));
});

check('wrong password is refused', async () => {
  await assert.rejects(connect({ password: 'wrong' }), /sasl|disconnected|Failed to authenticate/i);
});

check('missing vhost is refused', async () => {
  // The node opens the connection before it closes it with the error.
  const { connection } = await connect({ hostname: 'vhost:missing' });
  await until(() => connection.error, 'the error');
  assert.strictEqual(connection.error.condition, 'amqp:not-found');
});

check('heartbeats keep an idle connection', async () => {
  const client = await connect({ idle_time_out: 1200 });
  let frames = 0;
  const { connection } = client;
  connection.socket.on('data', () => frames++);
  await until(() => frames >= 3 || !connection.is_open(), 'heartbeats of the node');
  assert.ok(connection.is_open());
  await client.close();
});

for (const [name, url] of [['WebSocket', 'ws://127.0.0.1:15678/ws'], ['WebSocket with TLS', 'wss://127.0.0.1:15677/ws']]) {
  check(`messages and large messages over ${name}`, async () => {
    const client = await connectOver(url, { rejectUnauthorized: false });
    const queue = await client.queue('quorum');
    const large = types.wrap_binary(Buffer.alloc(1_000_000, 'x'));
    await client.send(queue, 'small', { body: large });
    const messages = await client.take(queue, 2);
    assert.strictEqual(messages[0].body, 'small');
    assert.ok(messages[1].body.equals(Buffer.alloc(1_000_000, 'x')));
    await client.close();
  });
}

check('HTTP API shows a connection over WebSocket', async () => {
  const client = await connectOver('ws://127.0.0.1:15678/ws');
  const { container_id: server } = client.connection;
  assert.ok(server);
  const id = client.connection.local.open.container_id;
  const found = await until(async () => {
    const all = await (await fetch('http://127.0.0.1:15672/api/connections', {
      headers: { authorization: `Basic ${btoa('guest:guest')}` } })).json();
    return all.find((connection) => connection.container_id === id);
  }, 'the connection in the listing');
  assert.strictEqual(found.protocol, 'Web AMQP 1-0');
  await client.close();
});

check('WebSocket with another subprotocol is refused', async () => {
  const { WebSocket } = require('ws');
  const socket = new WebSocket('ws://127.0.0.1:15678/ws', ['mqtt']);
  const error = await new Promise((resolve) => socket.once('error', resolve));
  assert.match(error.message, /400/);
});

check('small frames carry large messages', async () => {
  const client = await connect({ max_frame_size: 512 });
  const queue = await client.queue();
  const body = types.wrap_binary(Buffer.alloc(50_000, 'x'));
  await client.send(queue, { body });
  const [message] = await client.take(queue);
  assert.ok(message.body.equals(Buffer.alloc(50_000, 'x')));
  await client.close();
});

checked('sessions are independent', async (client) => {
  const session = client.connection.create_session();
  const opened = event(session, 'session_open');
  session.begin();
  await opened;
  const closed = event(session, 'session_close');
  session.close();
  await closed;
  const queue = await client.queue();
  await client.send(queue, 'a');
});

// Publishing.

eachKind('messages are accepted and counted', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, { body: 'a', durable: true }, { body: 'b' });
  assert.strictEqual(await client.count(queue), 2);
});

checked('settled message arrives', async (client) => {
  const queue = await client.queue();
  const sender = await client.sender(queue, { snd_settle_mode: 1 });
  sender.send({ body: 'a' });
  assert.strictEqual((await client.take(queue))[0].body, 'a');
});

checked('unroutable message is released', async (client) => {
  const sender = await client.sender(`/exchanges/${await client.exchange('direct')}/nowhere`);
  assert.strictEqual((await outcome(sender, { body: 'a' })).name, 'released');
});

eachKind('full queue rejects with a reason', async (client, kind) => {
  const queue = await client.queue(kind, { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
  const sender = await client.sender(queue);
  const error = await until(async () => (await outcome(sender, { body: 'a' })).error, 'a rejection');
  assert.strictEqual(error.condition, 'amqp:resource-limit-exceeded');
  assert.strictEqual(error.info.reason, 'maxlen');
  assert.strictEqual(error.info.queue, nameOf(queue));
});

checked('anonymous terminus takes the address of each message', async (client) => {
  const queue = await client.queue();
  const sender = await client.sender({ address: null });
  await accepted(sender, { to: queue, body: 'a' });
  const { name, error } = await outcome(sender, { to: '/exchanges/missing/key', body: 'b' });
  assert.deepStrictEqual([name, error.condition], ['rejected', 'amqp:not-found']);
  assert.strictEqual((await outcome(sender, { body: 'c' })).name, 'rejected');
  assert.strictEqual(await client.count(queue), 1);
});

eachKind('many messages in flight keep their order', async (client, kind) => {
  const queue = await client.queue(kind);
  const sender = await client.sender(queue);
  let [sent, settled] = [0, 0];
  const next = () => { while (sent < 1000 && sender.sendable()) sender.send({ body: sent++ }); };
  sender.on('sendable', next);
  sender.on('accepted', () => settled++);
  next();
  await until(() => settled === 1000, 'outcomes');
  assert.deepStrictEqual((await client.take(queue, 1000)).map(({ body }) => body), [...Array(1000).keys()]);
});

checked('links of a session publish side by side', async (client) => {
  const queues = await Promise.all([...Array(10)].map(() => client.queue()));
  const senders = await Promise.all(queues.map((queue) => client.sender(queue)));
  await Promise.all(senders.flatMap((sender) => [1, 2, 3].map((body) => accepted(sender, { body }))));
  assert.deepStrictEqual(await Promise.all(queues.map((queue) => client.count(queue))), Array(10).fill(3));
});

// Messages.

eachKind('properties of a message are preserved', async (client, kind) => {
  const queue = await client.queue(kind);
  const sent = {
    message_id: 'id-1', user_id: 'guest', subject: 'subject', reply_to: '/queues/answers', correlation_id: 'id-0',
    content_type: 'text/plain', content_encoding: 'identity', group_id: 'group', group_sequence: 7,
    reply_to_group_id: 'others', durable: true, priority: 3 };
  await client.send(queue, { ...sent, body: 'a', creation_time: new Date(1_600_000_000_000) });
  const [message] = await client.take(queue);
  for (const [key, value] of Object.entries(sent)) {
    assert.deepStrictEqual(key === 'user_id' ? String(message[key]) : message[key], value, key);
  }
  assert.strictEqual(new Date(message.creation_time).getTime(), 1_600_000_000_000);
});

eachKind('application properties keep their values', async (client, kind) => {
  const queue = await client.queue(kind);
  const properties = { text: 'é', yes: true, int: 7, negative: -70000, large: 5_000_000_000, double: 0.5 };
  await client.send(queue, { body: 'a', application_properties: { ...properties, byte: types.wrap_byte(-3) } });
  const [message] = await client.take(queue);
  assert.deepStrictEqual({ ...message.application_properties }, { ...properties, byte: -3 });
});

eachKind('bodies of every kind arrive', async (client, kind) => {
  const queue = await client.queue(kind);
  const bodies = ['text', 7, true, null, [1, ['x', 2]], { a: { b: 1 } }, 0.5];
  await client.send(queue, ...bodies.map((body) => ({ body })));
  const messages = await client.take(queue, bodies.length);
  assert.deepStrictEqual(messages.map(({ body }) => JSON.stringify(body)), bodies.map((body) => JSON.stringify(body)));
});

checked('data and sequence sections are kept', async (client) => {
  const queue = await client.queue();
  const { message } = rhea;
  await client.send(queue, { body: message.data_section(Buffer.from('data')) }, { body: message.sequence_section([1, 'two']) });
  const [data, sequence] = await client.take(queue, 2);
  assert.strictEqual(data.body.typecode, 0x75);
  assert.strictEqual(String(data.body.content), 'data');
  assert.strictEqual(sequence.body.typecode, 0x76);
  assert.deepStrictEqual(sequence.body.content, [1, 'two']);
});

checked('message annotations arrive', async (client) => {
  const queue = await client.queue();
  await client.send(queue, { body: 'a', message_annotations: { 'x-opt-text': 'a', 'x-opt-number': 7 } });
  const [{ message_annotations: annotations }] = await client.take(queue);
  assert.strictEqual(annotations['x-opt-text'], 'a');
  assert.strictEqual(annotations['x-opt-number'], 7);
  assert.strictEqual(annotations['x-routing-key'], nameOf(queue));
});

eachKind('time to live expires a message', async (client, kind) => {
  const dead = await client.queue();
  const queue = await client.queue(kind, { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': nameOf(dead) });
  await client.send(queue, { body: 'a', ttl: 10 });
  assert.strictEqual((await client.take(dead))[0].body, 'a');
});

// Consuming.

eachKind('credit limits deliveries', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
  const receiver = await client.receiver(queue, 3);
  await until(() => receiver.inbox.length === 3, 'three messages');
  await client.count(queue);
  assert.strictEqual(receiver.inbox.length, 3);
  receiver.add_credit(2);
  await until(() => receiver.inbox.length === 5, 'five messages');
  await client.count(queue);
  assert.strictEqual(receiver.inbox.length, 5);
});

eachKind('drain uses up the credit', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, 'a', 'b');
  const receiver = await client.receiver(queue, 0);
  const drained = event(receiver, 'receiver_drained');
  receiver.add_credit(10);
  receiver.drain_credit();
  await drained;
  assert.strictEqual(receiver.inbox.length, 2);
  assert.strictEqual(receiver.credit, 0);
});

eachKind('outcomes settle messages', async (client, kind) => {
  const dead = await client.queue();
  const queue = await client.queue(kind, { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': nameOf(dead) });
  await client.send(queue, 'accept', 'reject', 'release', 'modify');
  const receiver = await client.receiver(queue, 4);
  for (const act of ['accept', 'reject', 'release', 'modified']) {
    const { delivery } = await client.next(receiver);
    delivery[act](act === 'modified' ? { delivery_failed: true, undeliverable_here: true } : undefined);
    // rhea merges outcomes that it has not sent yet, also different ones.
    await client.count(queue);
  }
  // rhea sends the detach of a link before the outcomes of its deliveries.
  await until(async () => (await client.count(dead)) === 2, 'the messages');
  receiver.close();
  assert.deepStrictEqual((await client.take(dead, 2)).map(({ body }) => body).sort(), ['modify', 'reject']);
  assert.strictEqual((await client.take(queue))[0].body, 'release');
});

checked('modified annotations and the delivery count survive', async (client) => {
  const queue = await client.queue('quorum');
  await client.send(queue, 'a');
  const receiver = await client.receiver(queue, 2);
  const { message: first, delivery } = await client.next(receiver);
  assert.ok(!first.delivery_count);
  delivery.modified({ delivery_failed: true, undeliverable_here: false, message_annotations: { 'x-opt-why': 'busy' } });
  const { message, delivery: second } = await client.next(receiver);
  assert.strictEqual(message.delivery_count, 1);
  assert.strictEqual(message.message_annotations['x-opt-why'], 'busy');
  second.accept();
});

eachKind('settled receiver needs no disposition', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, 'a', 'b');
  const receiver = await client.receiver(queue, 2, { snd_settle_mode: 1 });
  assert.ok((await client.next(receiver)).delivery.remote_settled);
  await client.next(receiver);
  receiver.close();
  await until(async () => (await client.count(queue)) === 0, 'the settlement');
});

checked('second settle mode answers the disposition', async (client) => {
  const queue = await client.queue();
  await client.send(queue, 'a');
  const receiver = await client.receiver(queue, 1, { rcv_settle_mode: 1, autosettle: false });
  const { delivery } = await client.next(receiver);
  const settled = event(receiver, 'settled');
  delivery.update(false, rhea.message.accepted().described());
  await settled;
  assert.strictEqual(await client.count(queue), 0);
});

eachKind('unsettled messages return with the link', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, 'a', 'b');
  const receiver = await client.receiver(queue, 2);
  await client.next(receiver);
  receiver.close();
  await event(receiver, 'receiver_close');
  assert.deepStrictEqual((await client.take(queue, 2)).map(({ body }) => body), ['a', 'b']);
});

eachKind('receivers share a queue', async (client, kind) => {
  const queue = await client.queue(kind);
  const receivers = [await client.receiver(queue, 5), await client.receiver(queue, 5)];
  await client.send(queue, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
  await until(() => receivers.every(({ inbox }) => inbox.length === 5), 'five messages each');
});

eachKind('single active consumer hands over', async (client, kind) => {
  const queue = await client.queue(kind, { 'x-single-active-consumer': true });
  const first = await client.receiver(queue);
  const second = await client.receiver(queue);
  await client.send(queue, 'a');
  await until(() => first.inbox.length === 1, 'the message');
  assert.strictEqual(second.inbox.length, 0);
  first.close();
  assert.strictEqual((await client.next(second)).message.body, 'a');
});

eachKind('consumer priority is a link property', async (client, kind) => {
  const queue = await client.queue(kind);
  const low = await client.receiver(queue);
  const high = await client.receiver(queue, 10, { properties: { 'rabbitmq:priority': types.wrap_int(5) } });
  await client.send(queue, 'a', 'b');
  await until(() => high.inbox.length === 2, 'messages of the consumer with priority');
  assert.strictEqual(low.inbox.length, 0);
});

eachKind('deleted queue detaches its receivers', async (client, kind) => {
  const queue = await client.queue(kind);
  const receiver = await client.receiver(queue);
  const error = event(receiver, 'receiver_error');
  await client.call(200, 'DELETE', queue);
  await error;
  assert.strictEqual(receiver.error.condition, 'amqp:resource-deleted');
});

// Attaching.

for (const [address, condition] of [
  ['/queues/missing', 'amqp:not-found'], ['/exchanges/missing/key', 'amqp:not-found'], ['orders', 'amqp:invalid-field'],
]) {
  checked(`sender to ${address} is refused`, async (client) => {
    const kept = await client.sender(await client.queue());
    const sender = client.connection.open_sender(address);
    await event(sender, 'sender_error');
    assert.strictEqual(sender.error.condition, condition);
    assert.ok(!sender.target?.address);
    await accepted(kept, { body: 'a' });
  });
}

checked('receiver from a missing queue is refused', async (client) => {
  const receiver = client.connection.open_receiver('/queues/missing');
  await event(receiver, 'receiver_error');
  assert.strictEqual(receiver.error.condition, 'amqp:not-found');
  assert.ok(!receiver.source?.address);
});

checked('dynamic source is a queue of the link', async (client) => {
  const receiver = await client.receiver({ dynamic: true, capabilities: ['temporary-queue'] });
  const { address } = receiver.source;
  await client.send(address, 'a');
  assert.strictEqual((await client.next(receiver)).message.body, 'a');
  receiver.close();
  await until(async () => (await client.request('GET', address)).status === 404, 'the end of the queue');
});

checked('addresses are percent-encoded', async (client) => {
  const queue = `/queues/${encodeURIComponent(fresh('a/b é%'))}`;
  await client.call(201, 'PUT', queue, {});
  await client.send(queue, 'a');
  assert.strictEqual((await client.take(queue))[0].body, 'a');
});

// Exchanges and management.

checked('exchanges route', async (client) => {
  const queue = await client.queue();
  for (const [kind, key, pattern] of [['direct', 'key', 'key'], ['fanout', '', ''], ['topic', 'orders.7.eu', 'orders.*.eu']]) {
    const exchange = await client.exchange(kind);
    await client.bind(exchange, queue, pattern);
    await client.send(`/exchanges/${exchange}/${key}`, kind);
    const [message] = await client.take(queue);
    assert.strictEqual(message.body, kind);
    assert.strictEqual(message.message_annotations['x-exchange'], exchange);
  }
});

checked('headers exchange matches application properties', async (client) => {
  const [exchange, queue] = [await client.exchange('headers'), await client.queue()];
  await client.bind(exchange, queue, '', { 'x-match': 'all', colour: 'red' });
  const sender = await client.sender(`/exchanges/${exchange}`);
  await accepted(sender, { body: 'a', application_properties: { colour: 'red' } });
  assert.strictEqual((await outcome(sender, { body: 'a', application_properties: { colour: 'blue' } })).name, 'released');
});

checked('bindings are listed and removed', async (client) => {
  const [exchange, queue] = [await client.exchange('direct'), await client.queue()];
  await client.bind(exchange, queue, 'key', { a: 1 });
  const path = `/bindings?src=${exchange}&dstq=${nameOf(queue)}&key=key`;
  const [binding] = await client.call(200, 'GET', path);
  await client.call(204, 'DELETE', binding.location);
  assert.deepStrictEqual([...await client.call(200, 'GET', path)], []);
});

eachKind('queue describes itself and is purged and deleted', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, 'a', 'b');
  const status = await client.call(200, 'GET', queue);
  assert.deepStrictEqual([status.name, status.type, status.message_count, Boolean(status.durable)], [nameOf(queue), kind, 2, true]);
  assert.strictEqual((await client.call(200, 'DELETE', `${queue}/messages`)).message_count, 2);
  await client.call(200, 'DELETE', queue);
  await client.call(404, 'GET', queue);
});

// Filters.

eachKind('selector filters messages', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, { body: 'a', application_properties: { colour: 'blue' } },
    { body: 'b', application_properties: { colour: 'red' } });
  const receiver = await client.receiver({ address: queue, filter: rhea.filter.selector("colour = 'red'") });
  assert.strictEqual((await client.next(receiver)).message.body, 'b');
});

// Browsing.

eachKind('browser drains a queue and takes nothing', async (client, kind) => {
  const queue = await client.queue(kind);
  await client.send(queue, ...['a', 'b', 'c'].map((body) => ({ body, application_properties: { odd: body !== 'b' } })));
  for (const [filter, expected] of [[undefined, ['a', 'b', 'c']], [rhea.filter.selector('odd = TRUE'), ['a', 'c']]]) {
    const receiver = await client.receiver({ address: queue, distribution_mode: 'copy', filter }, 0);
    assert.strictEqual(receiver.source.distribution_mode, 'copy');
    const bodies = [];
    receiver.on('message', ({ message, delivery }) => {
      bodies.push(message.body);
      assert.ok(!message.delivery_count);
      delivery.release({ delivery_failed: true });
    });
    const drained = event(receiver, 'receiver_drained', 'receiver_error');
    receiver.drain = true;
    receiver.add_credit(10);
    await drained;
    assert.deepStrictEqual(bodies, expected);
    receiver.close();
  }
  assert.strictEqual(await client.count(queue), 3);
  assert.deepStrictEqual((await client.take(queue, 3)).map(({ body }) => body), ['a', 'b', 'c']);
});

// Recovery.

check('confirmed messages survive a killed node', async () => {
  const client = await connect();
  const queues = [];
  for (const kind of KINDS) queues.push(await client.queue(kind));
  for (const queue of queues) await client.send(queue, ...[...Array(20).keys()].map((body) => ({ body, durable: true })));
  const disconnected = event(client.connection, 'disconnected');
  node('kill', 'one');
  await disconnected;
  node('start', 'one');
  const again = await connect();
  for (const queue of queues) {
    assert.deepStrictEqual((await again.take(queue, 20)).map(({ body }) => body), [...Array(20).keys()]);
  }
  await again.close();
});

run('rhea');
