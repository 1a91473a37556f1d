package peers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A command to run: its words and additions to the environment.
type command struct {
	words       []string
	environment []string
}

func (c command) cmd() *exec.Cmd {
	cmd := exec.Command(c.words[0], c.words[1:]...)
	cmd.Env = append(os.Environ(), c.environment...)
	return cmd
}

// inDebian runs a program of the unpacked packages, with their files as the root and the directory as /mnt. It has
// its own processes and mounts, which disappear with it.
func (in installed) inDebian(dir string, words ...string) command {
	script := `mount --bind "$2" "$1/mnt" && mount --rbind /dev "$1/dev" && cd "$1" && root=$1 && shift 2 && exec chroot "$root" "$@"`
	return command{
		words: append([]string{"unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc=" + in.debian() + "/proc",
			"sh", "-c", script, "sh", in.debian(), dir}, words...),
		environment: []string{"HOME=/mnt", "LANG=C.UTF-8", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
	}
}

func write(dir, name, text string) error {
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// Without plugins other than MQTT and the requested ones, so that it does little beside messages.
func rabbitmq(in installed, dir string, ports map[string]int, demand Demand) (command, error) {
	// One port serves both versions of AMQP.
	ports["amqp10"] = ports["amqp"]
	queues := "classic"
	if demand.Synced {
		queues = "quorum"
	}
	settings := fmt.Sprintf("listeners.tcp.default = 127.0.0.1:%d\nmqtt.listeners.tcp.default = 127.0.0.1:%d\nmqtt.durable_queue_type = %s\nlog.console.level = warning\n",
		ports["amqp"], ports["mqtt"], queues)
	plugins := []string{"rabbitmq_mqtt"}
	if demand.Management {
		settings += fmt.Sprintf("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = %d\n", ports["management"])
		plugins = append(plugins, "rabbitmq_management")
	}
	if demand.Streams {
		settings += fmt.Sprintf("stream.listeners.tcp.1 = 127.0.0.1:%d\nstream.advertised_host = 127.0.0.1\nstream.advertised_port = %d\n", ports["stream"], ports["stream"])
		plugins = append(plugins, "rabbitmq_stream")
	}
	if err := write(dir, "rabbitmq.conf", settings); err != nil {
		return command{}, err
	}
	if err := write(dir, "enabled_plugins", "["+strings.Join(plugins, ",")+"].\n"); err != nil {
		return command{}, err
	}
	c := in.inDebian(dir, "/usr/lib/rabbitmq/bin/rabbitmq-server")
	c.environment = append(c.environment,
		"RABBITMQ_NODENAME=bench@localhost", "RABBITMQ_CONFIG_FILE=/mnt/rabbitmq.conf", "RABBITMQ_ENABLED_PLUGINS_FILE=/mnt/enabled_plugins",
		"RABBITMQ_MNESIA_BASE=/mnt/data", "RABBITMQ_LOG_BASE=/mnt", "RABBITMQ_LOGS=-", "RABBITMQ_PID_FILE=/mnt/pid",
		"ERL_EPMD_ADDRESS=127.0.0.1", fmt.Sprintf("ERL_EPMD_PORT=%d", ports["other"]), fmt.Sprintf("RABBITMQ_DIST_PORT=%d", ports["another"]),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}")
	return c, nil
}

// It always keeps sessions' messages in memory, and writes its file every half hour and at the end.
func mosquitto(in installed, dir string, ports map[string]int, demand Demand) (command, error) {
	settings := fmt.Sprintf("listener %d 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location /mnt/\n", ports["mqtt"])
	if demand.Patient {
		settings += "max_queued_messages 0\n"
	}
	if err := write(dir, "mosquitto.conf", settings); err != nil {
		return command{}, err
	}
	return in.inDebian(dir, "/usr/sbin/mosquitto", "-c", "/mnt/mosquitto.conf"), nil
}

// By default it syncs its files every two minutes.
func nats(in installed, dir string, ports map[string]int, demand Demand) (command, error) {
	sync := ""
	if demand.Synced {
		sync = "sync_interval: always"
	}
	settings := fmt.Sprintf("server_name: bench\nlisten: 127.0.0.1:%d\njetstream {\n store_dir: %q\n %s\n}\nmqtt {\n listen: 127.0.0.1:%d\n}\n",
		ports["other"], filepath.Join(dir, "data"), sync, ports["mqtt"])
	if err := write(dir, "nats.conf", settings); err != nil {
		return command{}, err
	}
	return command{words: []string{filepath.Join(in.of("nats"), "nats-server"), "-c", filepath.Join(dir, "nats.conf")}}, nil
}

// It writes sessions' messages to files without syncing them.
func hivemq(in installed, dir string, ports map[string]int, _ Demand) (command, error) {
	settings := fmt.Sprintf(`<?xml version="1.0"?>
<hivemq>
  <listeners><tcp-listener><port>%d</port><bind-address>127.0.0.1</bind-address></tcp-listener></listeners>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
</hivemq>
`, ports["mqtt"])
	if err := write(dir, "conf/config.xml", settings); err != nil {
		return command{}, err
	}
	var words []string
	for _, directory := range []string{"conf", "data", "extensions"} {
		path := filepath.Join(dir, directory)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return command{}, err
		}
		words = append(words, path)
	}
	path := in.of("hivemq") + "/classes:" + in.of("hivemq") + "/libraries/*"
	return command{words: append([]string{"java", "-Djava.net.preferIPv4Stack=true", "-cp", path, "Broker"}, words...)}, nil
}

// An instance that its own command creates. Its default port serves AMQP 1.0, among others.
func artemis(in installed, dir string, ports map[string]int, _ Demand) (command, error) {
	ports["amqp10"] = ports["other"]
	instance := filepath.Join(dir, "instance")
	create := exec.Command(filepath.Join(in.of("artemis"), "bin/artemis"), "create", instance, "--silent", "--user", "guest", "--password", "guest",
		"--allow-anonymous", "--host", "127.0.0.1", "--no-autotune", "--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-stomp-acceptor", "--no-web",
		"--default-port", fmt.Sprint(ports["other"]))
	if out, err := create.CombinedOutput(); err != nil {
		return command{}, fmt.Errorf("%w: %s", err, out)
	}
	file := filepath.Join(instance, "etc/broker.xml")
	text, err := os.ReadFile(file)
	if err != nil {
		return command{}, err
	}
	const standard = ":1883?"
	if !strings.Contains(string(text), standard) {
		return command{}, fmt.Errorf("no MQTT port in %s", file)
	}
	settings := strings.Replace(string(text), standard, fmt.Sprintf(":%d?", ports["mqtt"]), 1)
	// A broker that is stopped for a while is not stuck, and a nearly full disk is no reason to stop.
	settings = strings.Replace(settings, "<critical-analyzer>true<", "<critical-analyzer>false<", 1)
	settings = strings.Replace(settings, "<max-disk-usage>90<", "<max-disk-usage>-1<", 1)
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		return command{}, err
	}
	return command{words: []string{filepath.Join(instance, "bin/artemis"), "run"}}, nil
}
