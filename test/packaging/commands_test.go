// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// guides are the pages whose commands and settings are tried with a broker.
var guides = []string{
	"how-to/backup.md", "how-to/browsing-and-moving-messages.md", "how-to/deduplication.md", "how-to/delayed-messages.md",
	"how-to/hardening.md", "how-to/message-groups.md", "how-to/migrating-from-rabbitmq.md", "how-to/troubleshooting.md",
	"reference/command-line.md",
}

var (
	indented = regexp.MustCompile(`(?m)(?:^    .*\n)+`)
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	command  = regexp.MustCompile(`^(?:[a-z]+=\$\((?:posthorn|mktemp)|export|posthorn|rabbitmqctl|rabbitmq-diagnostics) `)
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

// unpack packs the broker into the archive of a release and unpacks it into a new folder, which it returns together with
// the archive.
func unpack(t *testing.T) (folder, archive string) {
	t.Helper()
	programs := t.TempDir()
	// The operator and the plugin do nothing in these pages.
	for _, name := range []string{"posthorn-operator", "kubectl-posthorn"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(posthorn(t), filepath.Join(programs, "posthorn")); err != nil {
		t.Fatal(err)
	}
	archive = part(t, ".tar.gz", "archive", "amd64", programs)
	folder = t.TempDir()
	if out, err := exec.Command("tar", "-xzf", archive, "-C", folder, "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return folder, archive
}

// runIsolated runs a script in a folder as on a new machine: without the checkout, without a network except loopback, and with
// nothing of the environment but PATH. It returns what the script printed. The processes of the script end with it.
func runIsolated(t *testing.T, folder, script string) (string, error) {
	t.Helper()
	checkout, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	arguments := []string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Getuid() != 0 {
		arguments = append(arguments, "--map-root-user")
	}
	const prepared = `ip link set lo up && mount -t tmpfs none "$CHECKOUT" && [ -z "$(ls "$CHECKOUT")" ] || exit 99; `
	shell := exec.Command("unshare", append(arguments, "bash", "-euc", prepared+script)...)
	shell.Dir = folder
	shell.Env = []string{
		"PATH=" + filepath.Join(folder, "bin") + ":" + os.Getenv("PATH"), "HOME=" + folder, "CHECKOUT=" + checkout,
	}
	out, err := shell.CombinedOutput()
	return string(out), err
}

// TestPagesWorkFromAReleaseArchive runs the commands of each guide from the first to the last against a node, checks the
// settings of each guide, and runs the tutorial.
func TestPagesWorkFromAReleaseArchive(t *testing.T) {
	folder, archive := unpack(t)
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
			file := filepath.Join(folder, "posthorn.conf")
			if err := os.WriteFile(file, []byte(settings.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := runIsolated(t, folder, "posthorn serve --data-dir $(mktemp -d) 2>node.log & posthorn ctl await_startup\nset -x\n"+
				strings.ReplaceAll(script.String(), "/etc/posthorn/posthorn.conf", file))
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := runIsolated(t, folder, "posthorn config check "+file); err != nil {
				t.Errorf("the settings of the page: %v\n%s", err, out)
			}
		})
	}
	t.Run("tutorials/one-node.md", func(t *testing.T) { runTutorial(t, archive) })
}

// runTutorial runs the tutorial of one node. With RECORD=1 it writes the session into the documentation; test/documents
// compares the commands there with those of the page.
func runTutorial(t *testing.T, archive string) {
	t.Helper()
	folder := t.TempDir()
	tutorials := filepath.Join("..", "..", "docs", "tutorials")
	for from, to := range map[string]string{
		archive: filepath.Base(archive), filepath.Join(tutorials, "one-node.md"): "one-node.md",
		filepath.Join("..", "..", "hack", "record-session"): "record-session",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, to), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	session, err := runIsolated(t, folder, "./record-session one-node.md")
	if err != nil {
		t.Fatalf("%v\n%s", err, session)
	}
	for _, want := range []string{"second order", "3 nodes are up", "payment 6", "\n           n3    false"} {
		if !strings.Contains(session, want) {
			t.Errorf("the session lacks %q:\n%s", want, session)
		}
	}
	if os.Getenv("RECORD") != "" {
		if err := os.WriteFile(filepath.Join(tutorials, "sessions", "one-node.txt"), []byte(session), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
