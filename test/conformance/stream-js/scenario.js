// rabbitmq-stream-js-client against Posthorn: what an application does with it.
'use strict';

const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const { Offset, connect } = require('rabbitmq-stream-js-client');
const { CompressionType } = require('rabbitmq-stream-js-client/dist/compression');
const { check, node, run, until } = require('../javascript/checks');

// The certificate of the node, if the scenario runs over TLS.
const certificate = process.env.TLS_CERTIFICATE;
const transport = certificate ? { port: 5551, ssl: { ca: readFileSync(certificate) } } : { port: 5552 };
const LOGIN = { hostname: '127.0.0.1', username: 'guest', password: 'guest', vhost: '/', ...transport };
const numbers = (from, to) => Array.from({ length: to - from }, (_, n) => String(from + n));
let count = 0;

/** A name that this run has not used. */
function fresh(prefix) {
  return `${prefix}-${count++}`;
}

/** Runs a function with a client, which it closes. */
async function withClient(body) {
  const client = await connect(LOGIN);
  try {
    return await body(client);
  } finally {
    await client.close();
  }
}

async function create(client, prefix, args = {}) {
  const stream = fresh(prefix);
  await client.createStream({ stream, arguments: args });
  return stream;
}

/** Publishes bodies and waits until all are confirmed. */
async function publish(client, stream, bodies) {
  const publisher = await client.declarePublisher({ stream });
  let confirmed = 0;
  publisher.on('publish_confirm', (error, ids) => {
    assert.equal(error, null);
    confirmed += ids.length;
  });
  for (const body of bodies) await publisher.send(Buffer.from(body));
  await publisher.flush();
  await until(() => confirmed === bodies.length, `${bodies.length} confirms`);
  await publisher.close();
}

/** Consumes a number of messages: pairs of offset and body. */
async function consume(client, stream, wanted, offset = Offset.first(), more = {}) {
  const found = [];
  const consumer = await client.declareConsumer({ stream, offset, ...more }, (message) => {
    found.push([Number(message.offset), message.content.toString()]);
  });
  await until(() => found.length >= wanted, `${wanted} messages of ${stream}`);
  await consumer.close();
  return found;
}

const pairs = (bodies) => bodies.map((body) => [Number(body), body]);

check('stream is created and deleted', () => withClient(async (client) => {
  const stream = await create(client, 'declare', { 'max-length-bytes': '1000000', 'max-age': '1h' });
  const [metadata] = await client.queryMetadata({ streams: [stream] });
  assert.equal(metadata.leader.port, LOGIN.port);
  await client.deleteStream({ stream });
  await assert.rejects(client.deleteStream({ stream }));
  await assert.rejects(client.declarePublisher({ stream }));
}));

check('messages are confirmed and consumed in order', () => withClient(async (client) => {
  const stream = await create(client, 'many');
  const bodies = numbers(0, 10_000);
  await publish(client, stream, bodies);
  assert.deepEqual(await consume(client, stream, bodies.length), pairs(bodies));
  const statistics = await client.streamStatsRequest(stream);
  assert.equal(statistics.committedChunkId <= 9999n, true);
}));

check('consumer starts at each kind of offset', () => withClient(async (client) => {
  const stream = await create(client, 'offsets');
  await publish(client, stream, numbers(0, 100));
  const began = Date.now();
  await until(() => Date.now() > began + 1, 'the clock moves on');
  const between = new Date();
  await publish(client, stream, numbers(100, 200));
  assert.deepEqual(await consume(client, stream, 150, Offset.offset(50n)), pairs(numbers(50, 200)));
  assert.deepEqual(await consume(client, stream, 100, Offset.timestamp(between)), pairs(numbers(100, 200)));
  const [last] = await consume(client, stream, 1, Offset.last());
  assert.ok(last[0] >= 100, `the last chunk starts at ${last[0]}`);
}));

check('named publisher is deduplicated', () => withClient(async (client) => {
  const stream = await create(client, 'dedup');
  for (const last of [100n, 110n]) {
    const publisher = await client.declarePublisher({ stream, publisherRef: 'p' });
    for (let n = 1n; n <= last; n++) await publisher.send(Buffer.from(String(n)), { publishingId: n });
    await publisher.flush();
    await until(async () => (await publisher.getLastPublishingId()) === last, `publishing id ${last}`);
    await publisher.close();
  }
  const found = await consume(client, stream, 110);
  assert.deepEqual(found.map(([, body]) => body), numbers(1, 111));
}));

check('sub-batches are stored with and without compression', () => withClient(async (client) => {
  for (const compression of [CompressionType.None, CompressionType.Gzip]) {
    const stream = await create(client, 'sub-batch');
    const publisher = await client.declarePublisher({ stream });
    await publisher.sendSubEntries(numbers(0, 100).map((body) => ({ content: Buffer.from(body) })), compression);
    await publisher.flush();
    const found = await consume(client, stream, 100);
    assert.deepEqual(found.map(([, body]) => body), numbers(0, 100));
    await publisher.close();
  }
}));

check('filtered consumer gets the messages of its filter', () => withClient(async (client) => {
  const stream = await create(client, 'filter');
  const filter = (message) => message.applicationProperties.region;
  for (const region of ['north', 'south']) {
    const publisher = await client.declarePublisher({ stream }, filter);
    for (let n = 0; n < 10; n++) await publisher.send(Buffer.from(region), { applicationProperties: { region } });
    await publisher.flush();
    await publisher.close();
  }
  const wanted = { values: ['south'], postFilterFunc: (m) => m.applicationProperties.region === 'south' };
  const found = await consume(client, stream, 10, Offset.first(), { filter: { ...wanted, matchUnfiltered: false } });
  assert.deepEqual(new Set(found.map(([, body]) => body)), new Set(['south']));
}));

check('stored offset is found again', () => withClient(async (client) => {
  const stream = await create(client, 'tracking');
  await publish(client, stream, numbers(0, 10));
  const consumer = await client.declareConsumer({ stream, offset: Offset.first(), consumerRef: 'group' }, () => {});
  await assert.rejects(consumer.queryOffset());
  await consumer.storeOffset(3n);
  await consumer.storeOffset(7n);
  assert.equal(await consumer.queryOffset(), 7n);
  assert.equal(await client.queryOffset({ reference: 'group', stream }), 7n);
}));

check('super stream is written and read', () => withClient(async (client) => {
  const streamName = fresh('super');
  await client.createSuperStream({ streamName }, undefined, 3);
  assert.deepEqual(await client.queryPartitions({ superStream: streamName }), [0, 1, 2].map((n) => `${streamName}-${n}`));
  const key = (_, options) => options.messageProperties.messageId;
  const publisher = await client.declareSuperStreamPublisher({ superStream: streamName }, key);
  for (const id of numbers(0, 300)) await publisher.send(Buffer.from(id), { messageProperties: { messageId: id } });
  const found = new Set();
  const handle = (message) => found.add(message.content.toString());
  await client.declareSuperStreamConsumer({ superStream: streamName, offset: Offset.first() }, handle);
  await until(() => found.size === 300, '300 messages');
  await publisher.close();
}));

check('next single active consumer takes over at the stored offset', () => withClient((first) => withClient(async (second) => {
  const stream = await create(first, 'single');
  await publish(first, stream, numbers(0, 10));
  const found = { one: [], two: [] };
  const declare = (client, name) => client.declareConsumer({
    stream,
    offset: Offset.first(),
    singleActive: true,
    consumerRef: 'group',
    consumerUpdateListener: async (reference) => {
      const stored = client.queryOffset({ reference, stream });
      return stored.then((offset) => Offset.offset(offset + 1n), () => Offset.first());
    },
  }, (message) => { found[name].push(Number(message.offset)); });
  const one = await declare(first, 'one');
  await until(() => found.one.length === 10, 'the messages of the first consumer');
  await declare(second, 'two');
  assert.deepEqual(found.two, []);
  await one.storeOffset(6n);
  assert.equal(await one.queryOffset(), 6n);
  await one.close();
  await until(() => found.two.length > 0 && found.two.at(-1) === 9, 'the messages of the second consumer');
  assert.deepEqual(found.two, [7, 8, 9]);
})));

check('client reconnects after its node was killed', () => withClient(async (client) => {
  const stream = await create(client, 'kill');
  await publish(client, stream, numbers(0, 1000));
  node('kill', 'one');
  node('start', 'one');
  await client.restart();
  await publish(client, stream, numbers(1000, 1010));
  const found = await consume(client, stream, 1010);
  assert.deepEqual(found.map(([, body]) => body), numbers(0, 1010));
}));

run(certificate ? 'stream-js-tls' : 'stream-js');
