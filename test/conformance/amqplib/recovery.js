// What an application sees of its node's death: amqplib's recovery reconnects to the same address and runs `setup` again; what
// was not confirmed is the application's to publish again. To go to another node is the application's too.
'use strict';

const assert = require('node:assert/strict');
const amqp = require('amqplib');
const { check, until, node, cluster } = require('../javascript/checks');

const MESSAGES = 300; // of which a third is confirmed when the node dies

/** A publisher whose connection is made again whenever it is lost. */
class Application {
  /** With one address amqplib's recovery goes back to it; with several the application goes to the next. */
  constructor(urls, queue, kind) {
    Object.assign(this, { urls, queue, kind, confirmed: 0, received: new Set() });
  }

  async start() {
    if (this.urls.length === 1) {
      const recovery = { initialDelay: 50, maxDelay: 500, setup: (model) => this.setup(model) };
      this.connection = await amqp.connect(this.urls[0], { recovery });
      this.connection.on('error', () => {});
    } else {
      await this.next();
    }
    return this;
  }

  /** A connection to the first node that takes us. */
  async next() {
    this.connection = await until(async () => {
      for (const url of this.urls) {
        try {
          const model = await amqp.connect(url);
          await this.setup(model);
          return model;
        } catch {
          // the next address
        }
      }
      return undefined;
    }, 'a node that takes us');
  }

  /** Runs on every connection. */
  async setup(model) {
    model.on('error', () => {});
    const channel = await model.createConfirmChannel();
    channel.on('error', () => {});
    await channel.assertQueue(this.queue, { durable: true, arguments: { 'x-queue-type': this.kind } });
    this.channel = channel;
  }

  /** Publishes until so many are confirmed, each again until it is. */
  async publishUpTo(count) {
    while (this.confirmed < count) {
      const { channel } = this;
      const sent = await new Promise((resolve) => {
        try {
          channel.sendToQueue(this.queue, Buffer.from(`${this.confirmed}`), { persistent: true }, (error) => resolve(!error));
        } catch {
          resolve(false); // the channel is closed
        }
      });
      if (sent) this.confirmed++;
      else if (this.urls.length > 1) await this.next();
      else await until(() => this.channel !== channel, 'a new connection');
    }
  }

  /** Consumes until every confirmed message was seen. */
  async consumeAll() {
    const { channel } = this;
    await channel.prefetch(50);
    await channel.consume(this.queue, (message) => {
      this.received.add(Number(message.content.toString()));
      channel.ack(message);
    });
    await until(() => this.received.size >= this.confirmed, `all of ${this.confirmed}`);
    assert.deepEqual([...this.received], Array.from({ length: this.confirmed }, (_, n) => n));
    await this.connection.close();
  }
}

function register(kinds) {
  for (const kind of kinds) {
    check(`a node killed and started again has all that was confirmed: ${kind}`, async () => {
      const application = await new Application(['amqp://127.0.0.1:5672/%2F'], `killed-${kind}`, kind).start();
      await application.publishUpTo(MESSAGES / 3);
      node('kill', 'one');
      node('start', 'one');
      await application.publishUpTo(MESSAGES);
      await application.consumeAll();
    });
  }

  check('two nodes of three go on without the one we were on', async () => {
    node('stop', 'one');
    cluster('start');
    const urls = [5681, 5682, 5683].map((port) => `amqp://127.0.0.1:${port}/%2F`);
    const application = await new Application(urls, 'survivor', 'quorum').start();
    await application.publishUpTo(MESSAGES / 3);
    node('kill', 'n1');
    await application.publishUpTo((2 * MESSAGES) / 3);
    cluster('node', 'n1');
    await application.publishUpTo(MESSAGES);
    await application.consumeAll();
  });
}

module.exports = { register };
