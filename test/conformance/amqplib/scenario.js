// amqplib against Posthorn: what an application does with it, and what it is told when it does it wrong.
'use strict';

const assert = require('node:assert/strict');
const { createHash, randomUUID } = require('node:crypto');
const amqp = require('amqplib');
const { check, run, until, within, PATIENCE } = require('../javascript/checks');

const URL = 'amqp://guest:guest@127.0.0.1:5672/%2F';
const KINDS = ['classic', 'quorum'];
const fresh = (prefix) => `${prefix}-${randomUUID()}`;
const text = (message) => message.content.toString();

/** The body with a connection and a confirm channel of its own. Their errors are what the checks look for. */
async function opened(body, url = URL) {
  const connection = await amqp.connect(url);
  connection.on('error', () => {});
  try {
    const channel = await connection.createConfirmChannel();
    channel.on('error', () => {});
    await body(channel, connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

async function declare(channel, kind = 'classic', extra = {}) {
  const { queue } = await channel.assertQueue(fresh(kind), { durable: true, arguments: { 'x-queue-type': kind, ...extra } });
  return queue;
}

/** Publishes these texts and waits for their confirms. */
async function publish(channel, queue, ...texts) {
  for (const body of texts) channel.sendToQueue(queue, Buffer.from(body), { persistent: true });
  await channel.waitForConfirms();
}

/** The next message, as soon as there is one. */
const get = (channel, queue) => until(() => channel.get(queue), `a message in ${queue}`);

async function take(channel, queue, count) {
  const taken = [];
  for (let n = 0; n < count; n++) {
    const message = await get(channel, queue);
    channel.ack(message);
    taken.push(text(message));
  }
  return taken;
}

/** True when a mandatory publish was routed. */
async function routed(channel, exchange, key, headers = {}) {
  let returned;
  const listener = (message) => {
    returned = message;
  };
  channel.on('return', listener);
  channel.publish(exchange, key, Buffer.from(key), { mandatory: true, headers });
  await channel.waitForConfirms();
  channel.off('return', listener);
  return returned === undefined;
}

/** The operation fails with this code, and the words are in the error. */
async function refused(code, words, operation) {
  await assert.rejects(operation, (error) => {
    assert.equal(error.code, code, error.message);
    assert.ok(error.message.includes(words), error.message);
    return true;
  });
}

check('connects, and hears what the server can', () =>
  opened(async (_, { connection }) => {
    const { capabilities, product } = connection.serverProperties;
    assert.ok(product);
    for (const one of ['publisher_confirms', 'basic.nack', 'consumer_cancel_notify', 'connection.blocked', 'exchange_exchange_bindings', 'per_consumer_qos', 'authentication_failure_close', 'consumer_priorities', 'direct_reply_to']) {
      assert.equal(capabilities[one], true, one);
    }
  }));

check('a wrong password and a wrong virtual host are told apart', async () => {
  await assert.rejects(amqp.connect('amqp://guest:wrong@127.0.0.1:5672/%2F'), /ACCESS_REFUSED|403/);
  // The client names the method that it got, not the code in it.
  await assert.rejects(amqp.connect('amqp://guest:guest@127.0.0.1:5672/nowhere'), /Expected ConnectionOpenOk; got <ConnectionClose/);
});

check('both password mechanisms let in', async () => {
  for (const mechanism of ['plain', 'amqplain']) {
    const connection = await amqp.connect(URL, { credentials: amqp.credentials[mechanism]('guest', 'guest') });
    await connection.close();
  }
});

check('publishes with confirms', async () => {
  for (const kind of KINDS) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      const texts = Array.from({ length: 500 }, (_, n) => `${n}`);
      await publish(channel, queue, ...texts);
      const got = [];
      await channel.consume(queue, (message) => got.push(text(message)), { noAck: true });
      await until(() => got.length === texts.length, 'all of them');
      assert.deepEqual(got, texts);
    });
  }
});

check('unroutable mandatory messages come back before their confirm', () =>
  opened(async (channel) => {
    const seen = [];
    channel.on('return', ({ fields, content }) => seen.push([fields.replyCode, fields.replyText, fields.exchange, fields.routingKey, content.toString()]));
    channel.publish('amq.direct', 'nowhere', Buffer.from('lost'), { mandatory: true }, (error) => seen.push(error));
    await channel.waitForConfirms();
    assert.deepEqual(seen, [[312, 'NO_ROUTE', 'amq.direct', 'nowhere', 'lost'], null]);
  }));

check('prefetch bounds what is out, of a consumer and of a channel', async () => {
  for (const [kind, global] of [['classic', false], ['quorum', false], ['classic', true]]) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      await publish(channel, queue, ...Array.from({ length: 12 }, (_, n) => `${n}`));
      await channel.prefetch(5, global);
      const got = [];
      await channel.consume(queue, (message) => got.push(message));
      await until(() => got.length >= 5, 'five deliveries');
      // The broker answers in order: what it had sent before this answer is here before it.
      await channel.checkQueue(queue);
      assert.equal(got.length, 5);
      channel.ack(got[4], true);
      await until(() => got.length >= 10, 'five more');
      channel.ackAll();
      await until(() => got.length === 12, 'the rest');
      assert.deepEqual(got.map(text), Array.from({ length: 12 }, (_, n) => `${n}`));
    });
  }
});

check('nack, reject and recover requeue or drop', async () => {
  for (const kind of KINDS) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      await publish(channel, queue, '1');
      const first = await get(channel, queue);
      assert.equal(first.fields.redelivered, false);
      channel.nack(first, false, true);
      const second = await get(channel, queue);
      assert.equal(second.fields.redelivered, true);
      await channel.recover();
      const third = await get(channel, queue);
      assert.equal(third.fields.redelivered, true);
      channel.reject(third, false);
      assert.equal(await channel.get(queue), false);
      assert.equal((await channel.checkQueue(queue)).messageCount, 0);
    });
  }
});

check('a lost connection returns what it held', async () => {
  for (const kind of KINDS) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      await publish(channel, queue, 'held');
      const other = await amqp.connect(URL);
      other.on('error', () => {});
      await get(await other.createChannel(), queue);
      other.connection.stream.destroy();
      const message = await get(channel, queue);
      assert.deepEqual([text(message), message.fields.redelivered], ['held', true]);
    });
  }
});

check('get tells how many are left', () =>
  opened(async (channel) => {
    const queue = await declare(channel);
    await publish(channel, queue, '1', '2');
    assert.equal((await channel.get(queue, { noAck: true })).fields.messageCount, 1);
    assert.equal((await channel.get(queue, { noAck: true })).fields.messageCount, 0);
    assert.equal(await channel.get(queue), false);
  }));

check('exchanges route by their type', () =>
  opened(async (channel) => {
    const any = { 'x-match': 'any', format: 'pdf', pages: 3 };
    const cases = {
      direct: { key: 'blue', to: [['blue']], not: [['red'], ['']] },
      topic: { key: '*.orange.#', to: [['a.orange'], ['a.orange.b.c']], not: [['orange'], ['a.red.b']] },
      fanout: { key: '', to: [['anything'], ['']], not: [] },
      headers: { key: '', args: any, to: [['', { format: 'pdf' }], ['', { pages: 3, more: true }]], not: [['', { format: 'txt' }], ['']] },
    };
    for (const [type, { key, args, to, not }] of Object.entries(cases)) {
      const { exchange } = await channel.assertExchange(fresh(type), type);
      const queue = await declare(channel);
      await channel.bindQueue(queue, exchange, key, args);
      for (const [routingKey, headers] of to) assert.ok(await routed(channel, exchange, routingKey, headers), `${type} ${routingKey}`);
      for (const [routingKey, headers] of not) assert.ok(!(await routed(channel, exchange, routingKey, headers)), `${type} ${routingKey}`);
      assert.deepEqual(await take(channel, queue, to.length), to.map(([routingKey]) => routingKey));
      await channel.unbindQueue(queue, exchange, key, args);
      await channel.deleteExchange(exchange, { ifUnused: true });
    }
  }));

check('exchanges bind to exchanges, and an alternate takes what has no route', () =>
  opened(async (channel) => {
    const [source, destination, alternate, queue] = [fresh('source'), fresh('destination'), fresh('alternate'), await declare(channel)];
    await channel.assertExchange(alternate, 'fanout');
    await channel.assertExchange(source, 'topic', { alternateExchange: alternate });
    await channel.assertExchange(destination, 'direct', { internal: true });
    await channel.bindExchange(destination, source, 'in.#');
    await channel.bindQueue(queue, destination, 'in.here');
    assert.ok(await routed(channel, source, 'in.here'));
    assert.ok(!(await routed(channel, source, 'elsewhere')));
    await channel.bindQueue(queue, alternate, '');
    assert.ok(await routed(channel, source, 'elsewhere'));
    await channel.unbindExchange(destination, source, 'in.#');
    assert.deepEqual(await take(channel, queue, 2), ['in.here', 'elsewhere']);
    channel.publish(destination, 'in.here', Buffer.from(''));
    await refused(403, "cannot publish to internal exchange", () => channel.checkQueue(queue));
  }));

check('errors close the channel, not the connection', () =>
  opened((owned) => opened(async (_, connection) => {
    const { queue: exclusive } = await owned.assertQueue('', { exclusive: true });
    const taken = await declare(owned);
    await owned.consume(taken, () => {}, { exclusive: true });
    const wrong = [
      [404, "no queue 'missing' in vhost '/'", (c) => c.checkQueue('missing')],
      [404, "no exchange 'missing' in vhost '/'", (c) => c.checkExchange('missing')],
      [404, "no exchange 'missing' in vhost '/'", (c) => c.bindQueue(taken, 'missing', '')],
      [404, "no queue 'missing' in vhost '/'", (c) => c.get('missing')],
      [403, "contains reserved prefix 'amq.*'", (c) => c.assertQueue('amq.mine')],
      [403, 'in exclusive use', (c) => c.consume(taken, () => {})],
      [405, `cannot obtain exclusive access to locked queue '${exclusive}'`, (c) => c.consume(exclusive, () => {})],
      [406, `inequivalent arg 'durable' for queue '${taken}'`, (c) => c.assertQueue(taken, { durable: false, arguments: { 'x-queue-type': 'classic' } })],
      [406, `inequivalent arg 'x-max-length' for queue '${taken}'`, (c) => c.assertQueue(taken, { durable: true, maxLength: 3, arguments: { 'x-queue-type': 'classic' } })],
      [406, "inequivalent arg 'type' for exchange 'amq.fanout'", (c) => c.assertExchange('amq.fanout', 'direct')],
      [406, "unknown exchange type 'no-such-type'", (c) => c.assertExchange(fresh('e'), 'no-such-type')],
      [404, "no exchange 'missing' in vhost '/'", (c) => (c.publish('missing', '', Buffer.from('')), c.checkQueue(taken))],
      [406, 'unknown delivery tag 9', (c) => (c.ack({ fields: { deliveryTag: 9 } }), c.checkQueue(taken))],
    ];
    for (const [code, words, operation] of wrong) {
      const channel = await connection.createChannel();
      const closed = new Promise((resolve) => channel.on('close', resolve));
      channel.on('error', () => {});
      await refused(code, words, operation(channel));
      await within(PATIENCE, closed, 'the channel did not close');
    }
    await (await connection.createChannel()).checkQueue(taken);
  })));

check('errors close the connection', async () => {
  const wrong = [
    [530, 'attempt to reuse consumer tag', async (c) => {
      const queue = await declare(c);
      await c.consume(queue, () => {}, { consumerTag: 'same' });
      await c.consume(queue, () => {}, { consumerTag: 'same' });
    }],
  ];
  for (const [code, words, operation] of wrong) {
    await opened(async (channel, connection) => {
      const failure = new Promise((resolve) => connection.on('error', resolve));
      operation(channel).catch(() => {});
      const error = await within(PATIENCE, failure, 'the connection did not fail');
      assert.equal(error.code, code, error.message);
      assert.ok(error.message.includes(words), error.message);
    });
  }
});

check('exclusive, server-named and auto-delete queues go', () =>
  opened((channel, owner) => opened(async (watcher, connection) => {
    const { queue: exclusive } = await channel.assertQueue('', { exclusive: true });
    assert.match(exclusive, /^amq\.gen-/);
    const { queue: automatic } = await channel.assertQueue(fresh('automatic'), { autoDelete: true });
    await channel.consume(automatic, () => {}, { consumerTag: 'only' });
    await channel.cancel('only');
    await refused(404, automatic, channel.checkQueue(automatic));
    await refused(405, exclusive, watcher.checkQueue(exclusive));
    await owner.close();
    const again = await connection.createChannel();
    again.on('error', () => {});
    await refused(404, exclusive, again.checkQueue(exclusive));
  })));

check('a consumer hears that its queue is gone', async () => {
  for (const kind of KINDS) {
    await opened(async (channel, connection) => {
      const queue = await declare(channel, kind);
      let told;
      await channel.consume(queue, (message) => {
        told = message;
      });
      await (await connection.createChannel()).deleteQueue(queue);
      await until(() => told === null, 'basic.cancel');
    });
  }
});

check('large bodies travel in many frames', async () => {
  const large = createHash('shake128', { outputLength: 5_000_000 }).update('large').digest();
  for (const kind of KINDS) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      channel.sendToQueue(queue, large);
      channel.sendToQueue(queue, Buffer.alloc(0));
      await channel.waitForConfirms();
      assert.ok((await get(channel, queue)).content.equals(large));
      assert.equal((await get(channel, queue)).content.length, 0);
    }, `${URL}?frameMax=8192`);
  }
});

check('properties and headers arrive as they were', async () => {
  const properties = {
    contentType: 'text/plain', contentEncoding: 'utf-8', deliveryMode: 2, priority: 3, correlationId: 'c', replyTo: 'r',
    expiration: '600000', messageId: 'm', timestamp: 1_700_000_000, type: 't', userId: 'guest', appId: 'a',
    headers: { number: -5, large: 2 ** 40, real: 1.5, text: 'é', yes: true, nothing: null, table: { inner: [1, 'two', { three: 3 }] }, bytes: Buffer.from([0, 255]) },
  };
  for (const kind of KINDS) {
    await opened(async (channel) => {
      const queue = await declare(channel, kind);
      channel.sendToQueue(queue, Buffer.from(''), { ...properties });
      const arrived = (await get(channel, queue)).properties;
      for (const [key, value] of Object.entries(properties)) {
        if (key === 'headers') continue;
        assert.deepEqual(arrived[key], value, key);
      }
      const { nothing, ...rest } = properties.headers;
      const { nothing: gone, ...others } = arrived.headers;
      assert.equal(nothing, gone ?? null);
      assert.deepEqual(JSON.stringify(others), JSON.stringify(rest));
    });
  }
});

check('messages expire, and full queues refuse or drop', () =>
  opened(async (channel) => {
    const expiring = await declare(channel, 'classic', { 'x-message-ttl': 1 });
    await publish(channel, expiring, 'short');
    await until(async () => (await channel.checkQueue(expiring)).messageCount === 0, 'the end of its life');
    const refusing = await declare(channel, 'classic', { 'x-max-length': 1, 'x-overflow': 'reject-publish' });
    await publish(channel, refusing, '1');
    await assert.rejects(publish(channel, refusing, '2'), /nacked/);
    const dropping = await declare(channel, 'classic', { 'x-max-length': 2 });
    await publish(channel, dropping, '1', '2', '3');
    assert.deepEqual(await take(channel, dropping, 2), ['2', '3']);
  }));

check('replies come directly', () =>
  opened(async (client, connection) => {
    const server = await connection.createConfirmChannel();
    const queue = await declare(server);
    const reply = new Promise((resolve) => {
      client.consume('amq.rabbitmq.reply-to', resolve, { noAck: true }).then(() =>
        client.sendToQueue(queue, Buffer.from('ping'), { replyTo: 'amq.rabbitmq.reply-to', correlationId: '7' }));
    });
    const request = await get(server, queue);
    server.sendToQueue(request.properties.replyTo, Buffer.from('pong'), { correlationId: request.properties.correlationId });
    const answer = await within(PATIENCE, reply, 'no reply');
    assert.deepEqual([text(answer), answer.properties.correlationId], ['pong', '7']);
  }));

check('the secret can be renewed, and heartbeats keep an idle connection', () =>
  opened(async (channel, connection) => {
    await connection.updateSecret(Buffer.from('guest'), 'rotated');
    // The client gives up a connection after two silent intervals.
    await new Promise((resume) => setTimeout(resume, 3500));
    await channel.assertQueue('', { exclusive: true });
  }, `${URL}?heartbeat=1`));

require('./recovery').register(KINDS);
run('amqplib');
