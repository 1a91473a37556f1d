/* Paho's C client on three nodes: clients of different nodes hear each other, and a session goes on when its node is killed. */

#include <MQTTClient.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 60 /* seconds; nothing takes as long */
#define ONE 1891    /* the nodes' ports */
#define TWO 1892
#define THREE 1893

static int passed;

#define MUST(what, ...)                                                      \
  do {                                                                       \
    if (!(what)) {                                                           \
      fprintf(stderr, "paho-c: line %d: %s", __LINE__, #what __VA_OPT__(": ")); \
      __VA_OPT__(fprintf(stderr, __VA_ARGS__);)                              \
      fputc('\n', stderr);                                                   \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

static void ok(const char *what) {
  printf("ok     %s\n", what);
  fflush(stdout);
  passed++;
}

struct options {
  int version, kept;
  const char *will; /* a topic */
};

struct client {
  MQTTClient handle;
  int version;
  int present; /* of 3.1.1; of 5.0 the client does not say */
};

static struct client open_client(int port, const char *id, struct options with) {
  struct client c = {.version = with.version};
  char uri[64];
  snprintf(uri, sizeof uri, "tcp://127.0.0.1:%d", port);
  MQTTClient_createOptions create = MQTTClient_createOptions_initializer;
  create.MQTTVersion = with.version;
  int rc = MQTTClient_createWithOptions(&c.handle, uri, id, MQTTCLIENT_PERSISTENCE_NONE, NULL, &create);
  MUST(rc == MQTTCLIENT_SUCCESS, "%d", rc);
  MQTTClient_connectOptions four = MQTTClient_connectOptions_initializer, five = MQTTClient_connectOptions_initializer5;
  MQTTClient_connectOptions connect = with.version == MQTTVERSION_5 ? five : four;
  MQTTClient_willOptions will = MQTTClient_willOptions_initializer;
  connect.MQTTVersion = with.version;
  connect.connectTimeout = PATIENCE;
  if (with.version == MQTTVERSION_5)
    connect.cleanstart = !with.kept;
  else
    connect.cleansession = !with.kept;
  if (with.kept) {
    connect.username = "kept:guest";
    connect.password = "guest";
  }
  if (with.will) {
    will.topicName = with.will;
    will.message = "gone";
    will.qos = 1;
    connect.will = &will;
  }
  if (with.version == MQTTVERSION_5) {
    MQTTProperties properties = MQTTProperties_initializer;
    MQTTProperty expiry = {.identifier = MQTTPROPERTY_CODE_SESSION_EXPIRY_INTERVAL, .value.integer4 = with.kept ? 300 : 0};
    MQTTProperties_add(&properties, &expiry);
    MQTTResponse answer = MQTTClient_connect5(c.handle, &connect, &properties, NULL);
    rc = answer.reasonCode;
    MQTTResponse_free(answer);
    MQTTProperties_free(&properties);
  } else {
    rc = MQTTClient_connect(c.handle, &connect);
  }
  MUST(rc == 0, "CONNACK %d of %s at %d", rc, id, port);
  c.present = connect.returned.sessionPresent;
  return c;
}

static void close_client(struct client *c) {
  if (c->version == MQTTVERSION_5)
    MQTTClient_disconnect5(c->handle, 1000, MQTTREASONCODE_SUCCESS, NULL);
  else
    MQTTClient_disconnect(c->handle, 1000);
  MQTTClient_destroy(&c->handle);
}

static void subscribe(struct client *c, const char *filter, int qos) {
  int rc;
  if (c->version == MQTTVERSION_5) {
    MQTTResponse answer = MQTTClient_subscribe5(c->handle, filter, qos, NULL, NULL);
    rc = answer.reasonCode;
    rc = rc == qos ? MQTTCLIENT_SUCCESS : rc;
    MQTTResponse_free(answer);
  } else {
    rc = MQTTClient_subscribe(c->handle, filter, qos);
  }
  MUST(rc == MQTTCLIENT_SUCCESS, "%d for %s", rc, filter);
}

/* Returns when it is acknowledged. */
static void publish(struct client *c, const char *topic, const char *text, int qos, int retained) {
  MQTTClient_deliveryToken token = 0;
  int rc;
  if (c->version == MQTTVERSION_5) {
    MQTTResponse answer = MQTTClient_publish5(c->handle, topic, strlen(text), text, qos, retained, NULL, &token);
    rc = answer.reasonCode;
    MQTTResponse_free(answer);
  } else {
    rc = MQTTClient_publish(c->handle, topic, strlen(text), text, qos, retained, &token);
  }
  MUST(rc == MQTTCLIENT_SUCCESS, "%d", rc);
  rc = MQTTClient_waitForCompletion(c->handle, token, PATIENCE * 1000);
  MUST(rc == MQTTCLIENT_SUCCESS, "no acknowledgement: %d", rc);
}

struct message {
  char topic[128], text[64];
  int qos, retained;
};

/* 0: none came within so many milliseconds. */
static int receive(struct client *c, struct message *got, unsigned long patience) {
  char *topic = NULL;
  int length = 0;
  MQTTClient_message *message = NULL;
  int rc = MQTTClient_receive(c->handle, &topic, &length, &message, patience);
  MUST(rc == MQTTCLIENT_SUCCESS || rc == MQTTCLIENT_TOPICNAME_TRUNCATED, "%d", rc);
  if (!message)
    return 0;
  snprintf(got->topic, sizeof got->topic, "%s", topic);
  snprintf(got->text, sizeof got->text, "%.*s", message->payloadlen, (char *)message->payload);
  got->qos = message->qos;
  got->retained = message->retained;
  MQTTClient_freeMessage(&message);
  MQTTClient_free(topic);
  return 1;
}

static struct message next(struct client *c) {
  struct message got;
  MUST(receive(c, &got, PATIENCE * 1000), "no message");
  return got;
}

static const int VERSIONS[] = {MQTTVERSION_3_1_1, MQTTVERSION_5};

static void messages_of_every_quality_between_nodes(int version) {
  struct options plain = {.version = version};
  struct client subscriber = open_client(ONE, "subscriber", plain), publisher = open_client(TWO, "publisher", plain);
  subscribe(&subscriber, "quality/+", 2);
  for (int qos = 0; qos < 3; qos++) {
    char topic[32];
    snprintf(topic, sizeof topic, "quality/%d", qos);
    publish(&publisher, topic, "hello", qos, 0);
    struct message got = next(&subscriber);
    MUST(!strcmp(got.topic, topic) && !strcmp(got.text, "hello") && got.qos == qos, "%s %s %d", got.topic, got.text, got.qos);
  }
  close_client(&subscriber);
  close_client(&publisher);
  ok(version == MQTTVERSION_5 ? "messages of every quality, 5.0" : "messages of every quality, 3.1.1");
}

static void what_is_retained_is_retained_everywhere(int version) {
  struct options plain = {.version = version};
  struct client publisher = open_client(ONE, "publisher", plain);
  publish(&publisher, "retained", "kept", 1, 1);
  for (int port = ONE; port <= THREE; port++) {
    struct client subscriber = open_client(port, "subscriber", plain);
    subscribe(&subscriber, "retained", 1);
    struct message got = next(&subscriber);
    MUST(!strcmp(got.text, "kept") && got.retained, "%s %d at %d", got.text, got.retained, port);
    close_client(&subscriber);
  }
  publish(&publisher, "retained", "", 1, 1);
  struct client subscriber = open_client(THREE, "subscriber", plain);
  subscribe(&subscriber, "retained", 1);
  publish(&publisher, "retained", "next", 1, 0);
  struct message got = next(&subscriber);
  MUST(!strcmp(got.text, "next") && !got.retained, "%s %d", got.text, got.retained);
  close_client(&subscriber);
  close_client(&publisher);
  ok(version == MQTTVERSION_5 ? "what is retained, 5.0" : "what is retained, 3.1.1");
}

/* A process with a client that dies without a word. */
static void die_with_a_will(int version, const char *topic) {
  pid_t child = fork();
  MUST(child >= 0);
  if (child == 0) {
    struct options dying = {.version = version, .will = topic};
    open_client(ONE, "dying", dying);
    raise(SIGKILL);
  }
  MUST(waitpid(child, NULL, 0) == child);
}

static void a_will_is_heard_at_another_node(int version) {
  struct options plain = {.version = version};
  struct client watcher = open_client(TWO, "watcher", plain);
  subscribe(&watcher, "will/+", 1);
  struct client polite = open_client(ONE, "polite", (struct options){.version = version, .will = "will/polite"});
  close_client(&polite);
  die_with_a_will(version, "will/rude");
  struct message got = next(&watcher);
  MUST(!strcmp(got.topic, "will/rude") && !strcmp(got.text, "gone"), "%s %s", got.topic, got.text);
  close_client(&watcher);
  ok(version == MQTTVERSION_5 ? "a will, 5.0" : "a will, 3.1.1");
}

enum { SHARED = 30 };

static void members_of_all_nodes_share_a_subscription(int version) {
  struct options plain = {.version = version};
  const char *names[] = {"member-1", "member-2", "member-3"};
  struct client members[3];
  for (int i = 0; i < 3; i++) {
    members[i] = open_client(ONE + i, names[i], plain);
    subscribe(&members[i], "$share/group/shared", 1);
  }
  struct client publisher = open_client(TWO, "publisher", plain);
  for (int n = 0; n < SHARED; n++) {
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    publish(&publisher, "shared", text, 1, 0);
  }
  int seen[SHARED] = {0}, got[3] = {0}, all = 0;
  time_t until = time(NULL) + PATIENCE;
  while (all < SHARED) {
    MUST(time(NULL) < until, "%d messages", all);
    for (int i = 0; i < 3; i++) {
      struct message message;
      if (!receive(&members[i], &message, 20))
        continue;
      int n = atoi(message.text);
      MUST(n >= 0 && n < SHARED && !seen[n], "%s twice", message.text);
      seen[n] = 1;
      got[i]++;
      all++;
    }
  }
  MUST(got[0] && got[1] && got[2], "%d %d %d", got[0], got[1], got[2]);
  for (int i = 0; i < 3; i++)
    close_client(&members[i]);
  close_client(&publisher);
  ok(version == MQTTVERSION_5 ? "a shared subscription, 5.0" : "a shared subscription, 3.1.1");
}

static void a_client_id_is_taken_over_at_another_node(int version) {
  struct options plain = {.version = version};
  struct client first = open_client(ONE, "wanted", plain), second = open_client(THREE, "wanted", plain);
  time_t until = time(NULL) + PATIENCE;
  while (MQTTClient_isConnected(first.handle)) {
    MUST(time(NULL) < until, "both are connected");
    MQTTClient_yield();
  }
  subscribe(&second, "taken", 1);
  publish(&second, "taken", "here", 1, 0);
  struct message got = next(&second);
  MUST(!strcmp(got.text, "here"), "%s", got.text);
  MQTTClient_destroy(&first.handle);
  close_client(&second);
  ok(version == MQTTVERSION_5 ? "a client id is taken over, 5.0" : "a client id is taken over, 3.1.1");
}

static void run(const char *command) {
  int code = system(command);
  MUST(code == 0, "%s: %d", command, code);
}

enum { KEPT = 50 };

static void sessions_go_on_when_their_node_is_killed(void) {
  const char *names[] = {"kept-4", "kept-5"}, *silent[] = {"silent-4", "silent-5"};
  struct client before[2], quiet[2];
  for (int i = 0; i < 2; i++) {
    struct options kept = {.version = VERSIONS[i], .kept = 1};
    before[i] = open_client(ONE, names[i], kept);
    MUST(!before[i].present);
    subscribe(&before[i], "session/1", 1);
    subscribe(&before[i], "session/2", 2);
    quiet[i] = open_client(ONE, silent[i], kept);
    MUST(!quiet[i].present);
  }
  run("\"$NODE\" kill n1");
  struct client publisher = open_client(TWO, "publisher", (struct options){.version = MQTTVERSION_3_1_1, .kept = 1});
  for (int n = 0; n < KEPT; n++) {
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    publish(&publisher, n % 2 ? "session/1" : "session/2", text, n % 2 ? 1 : 2, 0);
  }
  for (int i = 0; i < 2; i++) {
    struct options kept = {.version = VERSIONS[i], .kept = 1};
    struct client after = open_client(THREE, names[i], kept);
    MUST(after.present || after.version == MQTTVERSION_5, "the session of %s is gone", names[i]);
    /* The order is that of a topic; this client hands out QoS 2 when it is released. */
    int wanted[2] = {0, 1};
    for (int n = 0; n < KEPT; n++) {
      struct message got = next(&after);
      int number = atoi(got.text), which = number % 2;
      MUST(number == wanted[which], "%s instead of %d", got.text, wanted[which]);
      wanted[which] += 2;
    }
    close_client(&after);
    struct client other = open_client(TWO, silent[i], kept);
    MUST(other.present || other.version == MQTTVERSION_5, "the session of %s is gone", silent[i]);
    close_client(&other);
    MQTTClient_destroy(&before[i].handle);
    MQTTClient_destroy(&quiet[i].handle);
  }
  close_client(&publisher);
  ok("sessions go on when their node is killed, with a subscription and without one");
}

int main(void) {
  for (int i = 0; i < 2; i++) {
    messages_of_every_quality_between_nodes(VERSIONS[i]);
    what_is_retained_is_retained_everywhere(VERSIONS[i]);
    a_will_is_heard_at_another_node(VERSIONS[i]);
    members_of_all_nodes_share_a_subscription(VERSIONS[i]);
    a_client_id_is_taken_over_at_another_node(VERSIONS[i]);
  }
  sessions_go_on_when_their_node_is_killed();
  printf("paho-c: %d passed\n", passed);
  return 0;
}
