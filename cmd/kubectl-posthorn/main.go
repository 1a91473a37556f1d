// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// The plugin of kubectl for Posthorn: kubectl posthorn.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"posthorn.io/posthorn/internal/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command := plugin.NewCommand(plugin.Connect, plugin.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	err := command.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if message := err.Error(); message != "" {
		fmt.Fprintln(os.Stderr, "error:", message)
	}
	os.Exit(plugin.ExitCode(err))
}
