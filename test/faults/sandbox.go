package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxed marks, in the environment, the process that is already in the sandbox.
const sandboxed = "POSTHORN_FAULTS_SANDBOXED"

// enterSandbox runs this program again in its own namespaces for network, mounts and processes. Everything that the
// process has started, mounted or created disappears with it, however it ends: there is nothing to clean up.
func enterSandbox() int {
	// The inner process ends with the thread that started it, so this thread is kept.
	runtime.LockOSThread()
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 2
	}
	c := exec.Command(self, os.Args[1:]...)
	c.Env = append(os.Environ(), sandboxed+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	// A terminal sends these signals to the inner process too.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "faults: cannot make namespaces (are you root?):", err)
		return 2
	}
	go func() {
		for s := range signals {
			_ = c.Process.Signal(s)
		}
	}()
	err = c.Wait()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return ended.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return 2
	}
	return 0
}

// prepareSandbox makes mounts private and mounts /proc for this process namespace.
func prepareSandbox() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	return nil
}
