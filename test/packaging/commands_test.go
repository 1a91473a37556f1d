// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	// startDeadline is how long a broker may take to start.
	startDeadline = time.Minute
	retry         = 20 * time.Millisecond
)

// guides are the pages whose commands and settings are tried with a broker.
var guides = []string{"how-to/migrating-from-rabbitmq.md", "how-to/hardening.md", "how-to/troubleshooting.md",
	"reference/command-line.md"}

var (
	indented = regexp.MustCompile(`(?m)(?:^    .*\n)+`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	command  = regexp.MustCompile(`^(?:export|posthorn|rabbitmqctl|rabbitmq-diagnostics) `)
	setting  = regexp.MustCompile(`^[a-z_.0-9]+ +?= `)
)

// posthorn returns the broker: $POSTHORN, or one that is built in the checkout.
func posthorn(t *testing.T) string {
	t.Helper()
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join("..", "..", "broker", "target")
	}
	for _, each := range []string{os.Getenv("POSTHORN"), filepath.Join(target, "debug", "posthorn"), filepath.Join(target, "release", "posthorn")} {
		if _, err := os.Stat(each); each != "" && err == nil {
			path, err := filepath.Abs(each)
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	t.Fatal("no broker is built: cargo build -p posthorn, or set POSTHORN")
	return ""
}

// serve starts a node and returns the address of its HTTP API.
func serve(t *testing.T, program string) string {
	t.Helper()
	folder := t.TempDir()
	ready := filepath.Join(folder, "ready")
	arguments := []string{"serve", "--data-dir", filepath.Join(folder, "data"), "--ready-file", ready}
	for _, listener := range []string{"listeners.tcp.default", "management.tcp.port", "prometheus.tcp.port", "probes.tcp.port"} {
		arguments = append(arguments, "--set", listener+"=127.0.0.1:0")
	}
	node := exec.Command(program, arguments...)
	node.Stderr = os.Stderr
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Process.Kill(); _ = node.Wait() })
	for deadline := time.Now().Add(startDeadline); time.Now().Before(deadline); time.Sleep(retry) {
		var listening struct {
			Addresses map[string]string `json:"addresses"`
		}
		text, err := os.ReadFile(ready)
		if err == nil && json.Unmarshal(text, &listening) == nil {
			return "http://" + listening.Addresses["management"]
		}
	}
	t.Fatal("the node did not start")
	return ""
}

// TestCommandsOfTheGuidesWork runs the commands of each page from the first to the last against a node, and checks the
// settings of each page.
func TestCommandsOfTheGuidesWork(t *testing.T) {
	program := posthorn(t)
	for _, page := range guides {
		t.Run(page, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
			if err != nil {
				t.Fatal(err)
			}
			var script, settings strings.Builder
			for _, block := range indented.FindAllString(fenced.ReplaceAllString(string(text), ""), -1) {
				for line := range strings.Lines(block) {
					line = strings.TrimPrefix(line, "    ")
					switch {
					case command.MatchString(line):
						script.WriteString(line)
					case setting.MatchString(line):
						settings.WriteString(line)
					default:
						t.Errorf("neither a command of the broker nor a setting: %s", line)
					}
				}
			}
			if script.Len() == 0 {
				t.Fatal("the page has no commands")
			}
			folder := t.TempDir()
			for _, name := range []string{"posthorn", "rabbitmqctl", "rabbitmq-diagnostics"} {
				if err := os.Symlink(program, filepath.Join(folder, name)); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(folder, "posthorn.conf")
			if err := os.WriteFile(file, []byte(settings.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			shell := exec.Command("bash", "-euxc", strings.ReplaceAll(script.String(), "/etc/posthorn/posthorn.conf", file))
			shell.Dir = folder
			shell.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "POSTHORN_URL="+serve(t, program))
			if out, err := shell.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := exec.Command(program, "config", "check", file).CombinedOutput(); err != nil {
				t.Errorf("the settings of the page: %v\n%s", err, out)
			}
		})
	}
}
