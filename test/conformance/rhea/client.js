// A client with promises for the scenario: rhea itself reports everything by events.
'use strict';

const rhea = require('rhea');
const WebSocket = require('ws');
const { within, PATIENCE } = require('../javascript/checks');

let numbers = 0;

/** A name that this run has not used. */
const fresh = (prefix) => `${prefix}-${numbers++}`;

/** The context of the first of these events; rejects at the others. */
function event(emitter, name, ...failures) {
  return within(PATIENCE, new Promise((resolve, reject) => {
    emitter.once(name, resolve);
    for (const failure of failures) {
      emitter.once(failure, (context) => {
        const error = (context.receiver ?? context.sender ?? context.session ?? context.connection)?.error ?? context.error;
        reject(Object.assign(new Error(`${failure}: ${error?.condition} ${error?.description}`), { condition: error?.condition }));
      });
    }
  }), `no event '${name}'`);
}

/** Connects; with an `options.username`, its password is the same. */
async function connect(options = {}) {
  const user = options.username ?? 'guest';
  const connection = rhea.create_container().connect({
    host: '127.0.0.1', port: 5672, username: user, password: user, reconnect: false, ...options });
  connection.on('disconnected', () => {});
  connection.on('error', () => {});
  await event(connection, 'connection_open', 'connection_error', 'disconnected');
  return new Client(connection);
}

/** Connects to a WebSocket listener. */
function connectOver(url, options = {}) {
  const dial = rhea.websocket_connect(WebSocket);
  return connect({ connection_details: dial(url, ['amqp'], options) });
}

class Client {
  constructor(connection) {
    this.connection = connection;
    this.waiting = new Map();
  }

  async close() {
    if (this.connection.is_open()) {
      const closed = event(this.connection, 'connection_close');
      this.connection.close();
      await closed;
    }
  }

  // Management.

  async manage() {
    const name = fresh('management');
    const properties = { paired: true };
    const sender = this.connection.open_sender({
      name, properties, snd_settle_mode: 1, source: { address: 'me' }, target: { address: '/management' } });
    await event(sender, 'sender_open', 'sender_error', 'session_error');
    const receiver = this.connection.open_receiver({
      name, properties, snd_settle_mode: 1, source: { address: '/management' }, target: { address: 'me' } });
    await event(receiver, 'receiver_open', 'receiver_error', 'session_error');
    receiver.on('message', ({ message }) => this.waiting.get(message.correlation_id)?.(message));
    this.requests = sender;
  }

  /** The status and body of the answer of the management node. */
  async request(method, path, body = null) {
    if (!this.requests) await this.manage();
    const id = fresh('request');
    const answer = new Promise((resolve) => this.waiting.set(id, resolve));
    this.requests.send({ message_id: id, to: path, subject: method, reply_to: '$me', body });
    const message = await within(PATIENCE, answer, `no answer to ${method} ${path}`);
    this.waiting.delete(id);
    return { status: Number(message.subject), body: message.body };
  }

  async call(status, method, path, body) {
    const answer = await this.request(method, path, body);
    if (answer.status !== status) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }

  /** Declares a queue; its address. */
  async queue(kind = 'classic', args = {}) {
    const path = `/queues/${fresh(kind)}`;
    await this.call(201, 'PUT', path, { arguments: { ...args, 'x-queue-type': kind } });
    return path;
  }

  async exchange(type) {
    const name = fresh(type);
    await this.call(204, 'PUT', `/exchanges/${name}`, { type });
    return name;
  }

  bind(source, queue, key = '', args = {}) {
    return this.call(204, 'POST', '/bindings', {
      source, destination_queue: queue.split('/').pop(), binding_key: key, arguments: args });
  }

  async count(queue) {
    return (await this.call(200, 'GET', queue)).message_count;
  }

  // Links.

  async sender(target, options = {}) {
    const sender = this.connection.open_sender({ target, autosettle: true, treat_modified_as_released: false, ...options });
    await event(sender, 'sender_open', 'session_error');
    if (sender.is_open() && !sender.has_credit()) await event(sender, 'sendable', 'sender_error', 'session_error');
    return sender;
  }

  async receiver(source, credit = 10, options = {}) {
    const receiver = this.connection.open_receiver({ source, credit_window: 0, autoaccept: false, ...options });
    receiver.inbox = [];
    receiver.takers = [];
    receiver.on('message', (context) => {
      const taker = receiver.takers.shift();
      if (taker) taker(context);
      else receiver.inbox.push(context);
    });
    await event(receiver, 'receiver_open', 'session_error');
    receiver.add_credit(credit);
    return receiver;
  }

  /** The next message of a receiver, with its delivery. */
  next(receiver) {
    if (receiver.inbox.length > 0) return Promise.resolve(receiver.inbox.shift());
    return within(PATIENCE, new Promise((resolve) => receiver.takers.push(resolve)), 'no message');
  }

  /** Sends messages on a link of their own; each must be accepted. */
  async send(address, ...messages) {
    const sender = await this.sender(address);
    for (const message of messages) {
      const state = await outcome(sender, typeof message === 'object' && message && 'body' in message ? message : { body: message });
      if (state.name !== 'accepted') throw new Error(`outcome ${state.name}`);
    }
    sender.close();
    await event(sender, 'sender_close');
  }

  /** Receives and accepts so many messages. */
  async take(address, count = 1) {
    const receiver = await this.receiver(address, count);
    const messages = [];
    for (let i = 0; i < count; i++) {
      const { message, delivery } = await this.next(receiver);
      delivery.accept();
      messages.push(message);
    }
    receiver.close();
    await event(receiver, 'receiver_close');
    return messages;
  }
}

/** Sends a message: the name of its outcome, and the error of a rejection. */
async function outcome(sender, message) {
  const delivery = sender.send(message);
  const settled = new Promise((resolve) => {
    const listener = (context) => {
      if (context.delivery !== delivery) return;
      sender.removeListener('settled', listener);
      resolve(context.delivery.remote_state);
    };
    sender.on('settled', listener);
  });
  const state = await within(PATIENCE, settled, 'no outcome');
  return { name: state.constructor.composite_type, error: state.error };
}

module.exports = { connect, connectOver, event, fresh, outcome, rhea };
