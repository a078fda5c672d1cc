// A producer and a consumer that do not use this project, by the conventions of its three retry policies.
//
//   node peer.js URL produce EXCHANGE KEY HEADERS BODY    send one message, confirmed and mandatory
//   node peer.js URL consume QUEUE OPTIONS STOCK RUNS     run messages, until `RUNS` of them have run; a message fails
//                                                         until the file STOCK exists; each run is a line of JSON
"use strict";
const fs = require("fs");
const amqp = require("amqplib");

// Each returns where a message that failed goes, with which headers; null if the broker's reject sends it there.
const policies = {
  delay_queues(message, { namespace, timeout, max }) {
    const headers = message.properties.headers;
    const iteration = headers["current-iteration"] || 0;
    if (iteration >= (headers["retry-max"] ?? max)) return { exchange: `${namespace}.dead`, headers };
    const delay = (headers["retry-timeout-ms"] ?? timeout) * 2 ** iteration;
    return { exchange: `${namespace}.delay.${delay}`, headers: { ...headers, "current-iteration": iteration + 1 } };
  },
  fixed_ttl(message, { prefix, max }) {
    const headers = message.properties.headers;
    const left = (headers["mb-retries"] ?? max) - 1;
    const errors = [...(headers["mb-exceptions"] || []), "Error: sold out"];
    const exchange = left < 0 ? `${prefix}.failed` : `${prefix}.retry`;
    return { exchange, headers: { ...headers, "mb-retries": left, "mb-exceptions": errors } };
  },
  x_death(message, { queue, max }) {
    const deaths = message.properties.headers["x-death"] || [];
    const ours = deaths.filter((death) => death.queue === queue && death.reason === "rejected");
    const attempts = 1 + ours.reduce((sum, death) => sum + death.count, 0);
    if (attempts <= max) return null;
    const info = { error: "reject", num_attempts: attempts, failed_at: new Date().toISOString(), properties: {} };
    const headers = { ...message.properties.headers, retry_info: JSON.stringify(info) };
    delete headers["x-death"];
    return { exchange: `${queue}.error`, headers };
  },
};

async function produce(channel, exchange, key, headers, body) {
  channel.on("return", (message) => {
    throw new Error(`returned: ${message.fields.replyText}`);
  });
  const options = { persistent: true, mandatory: true, contentType: "application/json", contentEncoding: "utf-8" };
  channel.publish(exchange, key, Buffer.from(body), { ...options, headers: JSON.parse(headers) });
  await channel.waitForConfirms();
}

async function consume(channel, queue, options, stock, runs) {
  const { policy, ...rest } = JSON.parse(options);
  await channel.prefetch(1);
  await new Promise((resolve, reject) => {
    async function run(message) {
      const { headers, correlationId } = message.properties;
      console.log(JSON.stringify({ body: message.content.toString(), key: message.fields.routingKey, correlationId, headers }));
      const target = fs.existsSync(stock) ? undefined : policies[policy](message, { queue, ...rest });
      if (target === null) {
        channel.nack(message, false, false);
      } else {
        if (target) {
          const { exchange, headers } = target;
          channel.publish(exchange, message.fields.routingKey, message.content, { ...message.properties, headers, mandatory: true });
          await channel.waitForConfirms();
        }
        channel.ack(message);
      }
      if (--runs === 0) resolve();
    }
    channel.on("error", reject);
    channel.consume(queue, (message) => run(message).catch(reject)).catch(reject);
  });
}

async function main(url, act, ...rest) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  if (act === "produce") await produce(channel, ...rest);
  else await consume(channel, rest[0], rest[1], rest[2], Number(rest[3]));
  await channel.close();
  await connection.close();
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
