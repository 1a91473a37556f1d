// MQTT.js over WebSocket: what a web page does with it, and what it is told when it does it wrong.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const { randomUUID } = require('node:crypto');
const mqtt = require('mqtt');
const WebSocket = require('ws'); // MQTT.js's own
const { check, node, run, until, within, PATIENCE } = require('../javascript/checks');

const WEB = 'ws://127.0.0.1:15675/ws';
const SECURE = 'wss://localhost:15676/ws';
const TCP = 'mqtt://127.0.0.1:1883';
const CA = fs.readFileSync(`${process.env.WORK}/cert.pem`);
const fresh = (prefix) => `${prefix}-${randomUUID()}`;

/** A connected client; `got` is what it has received. */
async function open(url, options = {}) {
  const client = await mqtt.connectAsync(url, { protocolVersion: 5, clientId: fresh('c'), reconnectPeriod: 0, ca: CA, ...options });
  client.on('error', () => {});
  client.got = [];
  client.on('message', (topic, payload, packet) => client.got.push({ topic, payload, packet }));
  return client;
}

/** The body with a client of its own. */
async function opened(body, url = WEB, options = {}) {
  const client = await open(url, options);
  try {
    await body(client);
  } finally {
    await client.endAsync(true).catch(() => {});
  }
}

const received = (client, count) => until(() => client.got.length >= count, `${count} messages`);

/** The HTTP status that a request is refused with. */
function status(url, protocol, options) {
  const socket = new WebSocket(url, protocol, options);
  const answer = new Promise((resolve, reject) => {
    socket.on('unexpected-response', (request, response) => {
      request.destroy();
      resolve(response.statusCode);
    });
    socket.on('open', () => reject(new Error('it was let in')));
    socket.on('error', () => {});
  });
  return within(PATIENCE, answer, 'it is not refused');
}

for (const [name, url] of [['ws', WEB], ['wss', SECURE]]) {
  for (const protocolVersion of [3, 4, 5]) {
    const protocolId = protocolVersion === 3 ? 'MQIsdp' : 'MQTT';
    check(`${name} version ${protocolVersion}: messages of every QoS come back`, () =>
      opened(async (client) => {
        const topic = fresh('t');
        await client.subscribeAsync(`${topic}/#`, { qos: 2 });
        for (const qos of [0, 1, 2]) await client.publishAsync(`${topic}/${qos}`, `hello ${qos}`, { qos });
        await received(client, 3);
        const seen = client.got.map(({ topic: t, payload, packet }) => [t, payload.toString(), packet.qos]);
        assert.deepEqual(seen, [0, 1, 2].map((qos) => [`${topic}/${qos}`, `hello ${qos}`, qos]));
      }, url, { protocolVersion, protocolId, clientId: fresh('c').slice(0, 23) }));
  }
}

check('packets that are larger than a read, and many small ones at once', () =>
  opened(async (client) => {
    const topic = fresh('t');
    await client.subscribeAsync(topic, { qos: 1 });
    const large = Buffer.alloc(3_000_000, 'x');
    await client.publishAsync(topic, large, { qos: 1 });
    const count = 500;
    await Promise.all(Array.from({ length: count }, (_, n) => client.publishAsync(topic, `${n}`, { qos: 1 })));
    await received(client, count + 1);
    assert.ok(client.got[0].payload.equals(large));
    assert.deepEqual(client.got.slice(1).map(({ payload }) => Number(payload)), Array.from({ length: count }, (_, n) => n));
  }));

check('clients over WebSocket and over TCP hear each other', () =>
  opened(
    (web) =>
      opened(async (tcp) => {
        const topic = fresh('t');
        await web.subscribeAsync(topic, { qos: 1 });
        await tcp.subscribeAsync(topic, { qos: 1 });
        await web.publishAsync(topic, 'from the web', { qos: 1 });
        await tcp.publishAsync(topic, 'from tcp', { qos: 1 });
        await received(web, 2);
        await received(tcp, 2);
      }, TCP),
    WEB,
  ));

check('a client that breaks off leaves its will, and one that says goodbye does not', () =>
  opened(async (watcher) => {
    const topic = fresh('will');
    await watcher.subscribeAsync(`${topic}/#`);
    const will = (name) => ({ will: { topic: `${topic}/${name}`, payload: 'gone', qos: 0, retain: false } });
    const polite = await open(WEB, will('polite'));
    await polite.endAsync();
    const rude = await open(WEB, will('rude'));
    rude.stream.destroy();
    await received(watcher, 1);
    assert.deepEqual(watcher.got.map(({ topic: t }) => t), [`${topic}/rude`]);
  }));

check('a session goes on over the other transport', async () => {
  const topic = fresh('t');
  const options = { clientId: fresh('kept'), clean: false, properties: { sessionExpiryInterval: 60 } };
  const first = await open(WEB, options);
  await first.subscribeAsync(topic, { qos: 1 });
  await first.endAsync();
  await opened((publisher) => publisher.publishAsync(topic, 'while away', { qos: 1 }));
  const client = mqtt.connect(TCP, { protocolVersion: 5, ...options });
  const present = new Promise((resolve) => client.on('connect', (packet) => resolve(packet.sessionPresent)));
  const message = new Promise((resolve) => client.on('message', (_, payload) => resolve(payload.toString())));
  assert.equal(await within(PATIENCE, present, 'CONNACK'), true);
  assert.equal(await within(PATIENCE, message, 'the message'), 'while away');
  await client.endAsync();
});

check('a client id that another connection takes', async () => {
  const clientId = fresh('c');
  const first = await open(WEB, { clientId });
  const told = new Promise((resolve) => first.on('disconnect', (packet) => resolve(packet.reasonCode)));
  const closed = new Promise((resolve) => first.on('close', resolve));
  await opened(() => Promise.resolve(), WEB, { clientId });
  assert.equal(await within(PATIENCE, told, 'DISCONNECT'), 0x8e);
  await within(PATIENCE, closed, 'the close');
});

check('what is refused', async () => {
  assert.equal(await status('ws://127.0.0.1:15675/mqtt', 'mqtt'), 404);
  assert.equal(await status(WEB, 'chat'), 400);
  assert.equal(await status(WEB, 'mqtt', { origin: 'https://evil.example' }), 403);
  await opened(() => Promise.resolve(), WEB, { wsOptions: { origin: 'https://posthorn.example' } });
  await assert.rejects(open(WEB, { username: 'guest', password: 'wrong' }), { code: 0x86 });
});

check('text frames end the connection with 1003', async () => {
  const socket = new WebSocket(WEB, 'mqtt');
  socket.on('open', () => socket.send('text'));
  const code = new Promise((resolve) => socket.on('close', resolve));
  assert.equal(await within(PATIENCE, code, 'the close'), 1003);
});

check('a node that stops says so', async () => {
  const client = await open(WEB);
  const told = new Promise((resolve) => client.on('disconnect', (packet) => resolve(packet.reasonCode)));
  node('stop', 'one');
  assert.equal(await within(PATIENCE, told, 'DISCONNECT'), 0x8b);
});

run('mqttjs');
