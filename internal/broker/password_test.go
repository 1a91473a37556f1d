// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"posthorn.io/posthorn/internal/broker"
)

// hashOfTheBroker is the answer of a running broker to GET /api/users/NAME for the password "correct horse".
const hashOfTheBroker = "JGFyZ29uMmlkJHY9MTkkbT03MTY4LHQ9NSxwPTEkWGVuTW9seDFnYjltbjlPMFpvd1d6QSRVMG15TjdqMWROOXNwNFhlQjZwREhIclYxaDBUOUZkVVhWa2tKN1pnN01B"

func TestCheckPasswordAcceptsTheBrokersHashes(t *testing.T) {
	user := broker.User{PasswordHash: hashOfTheBroker, HashingAlgorithm: "argon2id"}
	for password, want := range map[string]broker.PasswordMatch{
		"correct horse": broker.PasswordSame, "another horse": broker.PasswordDiffers, "": broker.PasswordDiffers,
	} {
		for range 2 {
			if got := user.CheckPassword(password); got != want {
				t.Errorf("password %q: %d, want %d", password, got, want)
			}
		}
	}
}

// TestPasswordsOfUsersPutToABroker compares passwords with the hashes that a running broker makes of them, so that a change
// of its algorithm does not hide a foreign password. $POSTHORN is the program.
func TestPasswordsOfUsersPutToABroker(t *testing.T) {
	program := os.Getenv("POSTHORN")
	if program == "" {
		t.Skip("set POSTHORN to a broker")
	}
	ctx := context.Background()
	client := broker.New(broker.Access{URL: startNode(t, program), Username: "guest", Password: "guest"}, broker.NewTransport())
	for _, password := range []string{"first", "changed behind the operator's back"} {
		if err := client.PutUser(ctx, "app", password, nil); err != nil {
			t.Fatal(err)
		}
		user, err := client.GetUser(ctx, "app")
		if err != nil {
			t.Fatal(err)
		}
		if got := user.CheckPassword(password); got != broker.PasswordSame {
			t.Errorf("password %q with the hash %q of %s: %d", password, user.PasswordHash, user.HashingAlgorithm, got)
		}
		if got := user.CheckPassword("another"); got != broker.PasswordDiffers {
			t.Errorf("another password with the hash %q of %s: %d", user.PasswordHash, user.HashingAlgorithm, got)
		}
	}
}

func TestCheckPasswordRefusesExpensiveArgon2Hashes(t *testing.T) {
	const good = "$argon2id$v=19$m=7168,t=5,p=1$XenMolx1gb9mn9O0ZowWzA$Q0myN7j1dN9sp4XeB6pDHHrV1h0T9FdUXVkkJ7Zg7MA"
	for _, change := range [][2]string{
		{"m=7168", "m=65537"}, {"t=5", "t=17"}, {"p=1", "p=5"}, {"p=1", "p=0"}, {"t=5", "t=0"}, {"m=7168", "m=0"},
		{"m=7168", "m=-1"}, {"m=7168,", ""}, {"v=19", "v=16"}, {"argon2id", "argon2i"},
		{"XenMolx1gb9mn9O0ZowWzA", ""}, {"Q0myN7j1dN9sp4XeB6pDHHrV1h0T9FdUXVkkJ7Zg7MA", ""}, {"XenMolx1gb9mn9O0ZowWzA", "!"},
		{"XenMolx1gb9mn9O0ZowWzA", strings.Repeat("A", 512)},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		user := broker.User{PasswordHash: base64.StdEncoding.EncodeToString([]byte(text)), HashingAlgorithm: "argon2id"}
		if user.CheckPassword("correct horse") != broker.PasswordUnknown {
			t.Errorf("%s was compared", text)
		}
	}
}
