// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package packaging

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// part runs a script of hack/release and returns the only file that it wrote with this ending.
func part(t *testing.T, ending, script string, arguments ...string) string {
	t.Helper()
	out := t.TempDir()
	run := exec.Command(filepath.Join("..", "..", "hack", "release", script), append(arguments, out)...)
	run.Env = append(os.Environ(), "REGISTRY=registry.test/team", "SOURCE_DATE_EPOCH=86400")
	if text, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, text)
	}
	found, err := filepath.Glob(filepath.Join(out, "*"+ending))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s wrote %v (%v), want one file", script, found, err)
	}
	return found[0]
}

// sameBytes fails if two files differ.
func sameBytes(t *testing.T, first, second string) {
	t.Helper()
	a, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(second)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("%s differs from that of another run (%v)", filepath.Base(first), err)
	}
}

func TestReleasedChartNamesTheImagesOfItsVersion(t *testing.T) {
	file := part(t, ".tgz", "chart")
	chart, err := loader.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := renderedChart(t, chart, "")
	if err != nil {
		t.Fatal(err)
	}
	version := chart.Metadata.Version
	if got, want := container(objects)["image"], "registry.test/team/posthorn-operator:"+version; got != want {
		t.Errorf("the operator's image is %v, want %s", got, want)
	}
	if want := "--default-broker-image=registry.test/team/posthorn:" + version; !strings.Contains(strings.Join(arguments(objects), " "), want) {
		t.Errorf("arguments %v, want %s", arguments(objects), want)
	}
	sameBytes(t, file, part(t, ".tgz", "chart"))
}

func TestReleasedManifestsHaveTheObjectsOfTheChart(t *testing.T) {
	for name, values := range map[string]string{"install-": "", "install-all-namespaces-": "watchAllNamespaces: true"} {
		sameAsChart(t, name, values)
	}
}

// sameAsChart compares a released manifest with the chart of the same values.
func sameAsChart(t *testing.T, name, values string) {
	t.Helper()
	text, err := os.ReadFile(part(t, name+chartVersion(t)+".yaml", "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	manifest := map[string]object{}
	for _, each := range strings.Split("\n"+string(text), "\n---\n") {
		put(t, manifest, each)
	}
	chart, err := loader.Load(part(t, ".tgz", "chart"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := renderedChart(t, chart, values)
	if err != nil {
		t.Fatal(err)
	}
	same(t, objects, manifest)
}

// krewManifest is the part of the manifest of a kubectl plugin that this test reads.
type krewManifest struct {
	Spec struct {
		Version   string
		Platforms []struct {
			URI, Sha256, Bin string
			Files            []struct{ From, To string }
			Selector         struct{ MatchLabels map[string]string }
		}
	}
}

func TestKrewInstallsThePluginOfEveryPlatform(t *testing.T) {
	plugins, version := t.TempDir(), chartVersion(t)
	platforms := []string{"linux/amd64", "darwin/arm64", "windows/amd64"}
	for _, platform := range platforms {
		directory := filepath.Join(plugins, platform)
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, "kubectl-posthorn"), []byte(platform), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PLUGINS", plugins)
	t.Setenv("PLATFORMS", strings.Join(platforms, " "))
	t.Setenv("DOWNLOADS", "https://downloads.test/x")
	file := part(t, "krew-"+version+".yaml", "plugin")
	sameBytes(t, file, part(t, "krew-"+version+".yaml", "plugin"))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var manifest krewManifest
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Spec.Version != "v"+version || len(manifest.Spec.Platforms) != len(platforms) {
		t.Fatalf("version %s with %d platforms", manifest.Spec.Version, len(manifest.Spec.Platforms))
	}
	for i, each := range manifest.Spec.Platforms {
		name, found := strings.CutPrefix(each.URI, "https://downloads.test/x/")
		archive, err := os.ReadFile(filepath.Join(filepath.Dir(file), name))
		if err != nil || !found || fmt.Sprintf("%x", sha256.Sum256(archive)) != each.Sha256 {
			t.Errorf("%s: %v %s", each.URI, err, each.Sha256)
		}
		labels := each.Selector.MatchLabels
		if labels["os"]+"/"+labels["arch"] != platforms[i] {
			t.Errorf("%v selects %s", labels, each.URI)
		}
		unpacked := t.TempDir()
		if out, err := exec.Command("tar", "-xzf", filepath.Join(filepath.Dir(file), name), "-C", unpacked).CombinedOutput(); err != nil {
			t.Fatalf("tar: %v\n%s", err, out)
		}
		program, err := os.ReadFile(filepath.Join(unpacked, each.Files[0].From))
		if err != nil || string(program) != platforms[i] || filepath.Base(each.Files[0].From) != each.Bin {
			t.Errorf("%s: %q (%v)", each.Bin, program, err)
		}
	}
}

func chartVersion(t *testing.T) string {
	t.Helper()
	chart, err := loader.Load(filepath.Join("..", "..", "charts", "posthorn"))
	if err != nil {
		t.Fatal(err)
	}
	return chart.Metadata.Version
}

func TestArchiveHasAllPrograms(t *testing.T) {
	// The contents of the programs do not matter to the archive.
	programs := t.TempDir()
	for _, name := range []string{"posthorn", "posthorn-operator", "kubectl-posthorn"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := part(t, ".tar.gz", "archive", "arm64", programs)
	sameBytes(t, file, part(t, ".tar.gz", "archive", "arm64", programs))
	unpacked := t.TempDir()
	if out, err := exec.Command("tar", "-xzf", file, "-C", unpacked, "--strip-components=1").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	for path, mode := range map[string]os.FileMode{
		"bin/posthorn": 0o755, "bin/posthorn-operator": 0o755, "bin/kubectl-posthorn": 0o755, "LICENSE": 0o644, "posthorn.conf": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(unpacked, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v (%v), want mode %v", path, info, err, mode)
		}
	}
	if target, err := os.Readlink(filepath.Join(unpacked, "bin/rabbitmqctl")); err != nil || target != "posthorn" {
		t.Errorf("rabbitmqctl is a link to %q (%v)", target, err)
	}
}

func TestDebianPackageHasProgramUnitAndConfiguration(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("there is no dpkg-deb")
	}
	// The contents of the program do not matter to the package.
	program := filepath.Join(t.TempDir(), "posthorn")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := part(t, ".deb", "deb", "arm64", program)
	sameBytes(t, file, part(t, ".deb", "deb", "arm64", program))
	unpacked := t.TempDir()
	for _, arguments := range [][]string{{"--extract", file, unpacked}, {"--control", file, filepath.Join(unpacked, "DEBIAN")}} {
		if out, err := exec.Command("dpkg-deb", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, out)
		}
	}
	for path, mode := range map[string]os.FileMode{
		"usr/bin/posthorn": 0o755, "etc/posthorn/posthorn.conf": 0o640, "usr/lib/systemd/system/posthorn.service": 0o644,
		"DEBIAN/postinst": 0o755, "DEBIAN/prerm": 0o755, "DEBIAN/postrm": 0o755, "DEBIAN/conffiles": 0o644,
	} {
		if info, err := os.Stat(filepath.Join(unpacked, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v (%v), want mode %v", path, info, err, mode)
		}
	}
	control, err := os.ReadFile(filepath.Join(unpacked, "DEBIAN", "control"))
	if err != nil || !strings.Contains(string(control), "Architecture: arm64\n") || !strings.Contains(string(control), "Version: "+chartVersion(t)+"\n") {
		t.Errorf("control (%v):\n%s", err, control)
	}
	if target, err := os.Readlink(filepath.Join(unpacked, "usr/lib/posthorn/bin/rabbitmqctl")); err != nil || target != "/usr/bin/posthorn" {
		t.Errorf("rabbitmqctl is a link to %q (%v)", target, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if out, err := exec.Command("sh", "-n", filepath.Join(unpacked, "DEBIAN", script)).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	t.Run("unit", func(t *testing.T) { verifyUnit(t, unpacked) })
}

// verifyUnit checks the unit of an unpacked package with systemd.
func verifyUnit(t *testing.T, unpacked string) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze")
	}
	// Only the paths differ from those of an installed package.
	text, err := os.ReadFile(filepath.Join(unpacked, "usr/lib/systemd/system/posthorn.service"))
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "posthorn.service")
	if err := os.WriteFile(unit, bytes.ReplaceAll(text, []byte("/usr/bin/posthorn"), []byte(filepath.Join(unpacked, "usr/bin/posthorn"))), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", unit).CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", unit).CombinedOutput(); err != nil {
		t.Errorf("the unit is less restricted than the threshold: %v\n%s", err, out)
	}
}
