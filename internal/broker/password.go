// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/crypto/argon2"
)

// PasswordMatch is the result of comparing a user's password.
type PasswordMatch int

// Results of User.CheckPassword.
const (
	// PasswordUnknown: the broker does not report the hash, or its algorithm is unknown.
	PasswordUnknown PasswordMatch = iota
	PasswordSame
	PasswordDiffers
)

// saltBytes is the length of the salt at the start of RabbitMQ's password hashes.
const saltBytes = 4

// Limits of the cost parameters of an argon2id hash. The broker has the same limits and refuses a hash above them.
const (
	maxArgon2Text   = 512
	maxArgon2Memory = 64 * 1024 // KiB
	maxArgon2Passes = 16
	maxArgon2Lanes  = 4
)

// CheckPassword compares the user's hash with a password. The broker creates argon2id hashes, and keeps the RabbitMQ
// hashes of imported users. The HTTP API encodes all of them in base64.
func (u User) CheckPassword(password string) PasswordMatch {
	raw, err := base64.StdEncoding.DecodeString(u.PasswordHash)
	if err != nil {
		return PasswordUnknown
	}
	switch u.HashingAlgorithm {
	case "argon2id":
		return checkArgon2id(string(raw), password)
	case "rabbit_password_hashing_sha256":
		return checkSalted(raw, password, func(salted []byte) []byte { sum := sha256.Sum256(salted); return sum[:] })
	case "rabbit_password_hashing_sha512":
		return checkSalted(raw, password, func(salted []byte) []byte { sum := sha512.Sum512(salted); return sum[:] })
	}
	return PasswordUnknown
}

// checkSalted compares with RabbitMQ's format: a salt of four bytes, then the digest of salt and password.
func checkSalted(raw []byte, password string, digest func([]byte) []byte) PasswordMatch {
	if len(raw) <= saltBytes {
		return PasswordUnknown
	}
	salted := append(append([]byte{}, raw[:saltBytes]...), password...)
	return compare(digest(salted), raw[saltBytes:], password)
}

// checkArgon2id compares with a PHC string: $argon2id$v=19$m=7168,t=5,p=1$salt$digest.
func checkArgon2id(text, password string) PasswordMatch {
	parts := strings.Split(text, "$")
	if len(text) > maxArgon2Text || len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != "v="+strconv.Itoa(argon2.Version) {
		return PasswordUnknown
	}
	work := strings.Split(parts[3], ",")
	if len(work) != 3 {
		return PasswordUnknown
	}
	memory := argon2Parameter(work[0], "m=", maxArgon2Memory)
	passes := argon2Parameter(work[1], "t=", maxArgon2Passes)
	lanes := argon2Parameter(work[2], "p=", maxArgon2Lanes)
	salt, saltErr := base64.RawStdEncoding.DecodeString(parts[4])
	want, wantErr := base64.RawStdEncoding.DecodeString(parts[5])
	if memory == 0 || passes == 0 || lanes == 0 || saltErr != nil || wantErr != nil || len(salt) == 0 || len(want) == 0 {
		return PasswordUnknown
	}
	mark := verified.mark(text, password)
	if verified.has(mark) {
		return PasswordSame
	}
	got := argon2.IDKey([]byte(password), salt, uint32(passes), uint32(memory), uint8(lanes), uint32(len(want)))
	match := compare(got, want, password)
	if match == PasswordSame {
		verified.add(mark)
	}
	return match
}

// maxVerified bounds the number of remembered passwords.
const maxVerified = 16384

// verified remembers the password of each argon2id hash that matched. A comparison takes 20 ms and 7 MiB, and every
// resync compares every user.
var verified = newVerifiedPasswords()

type verifiedPasswords struct {
	key  [sha256.Size]byte
	mu   sync.Mutex
	seen map[[sha256.Size]byte]struct{}
}

func newVerifiedPasswords() *verifiedPasswords {
	v := &verifiedPasswords{seen: map[[sha256.Size]byte]struct{}{}}
	// rand.Read never fails. The random key makes the marks useless outside this process.
	_, _ = rand.Read(v.key[:])
	return v
}

// mark identifies a hash together with a password.
func (v *verifiedPasswords) mark(hash, password string) [sha256.Size]byte {
	mac := hmac.New(sha256.New, v.key[:])
	mac.Write([]byte(hash))
	mac.Write([]byte{0})
	mac.Write([]byte(password))
	return [sha256.Size]byte(mac.Sum(nil))
}

func (v *verifiedPasswords) has(mark [sha256.Size]byte) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, found := v.seen[mark]
	return found
}

func (v *verifiedPasswords) add(mark [sha256.Size]byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.seen) >= maxVerified {
		clear(v.seen)
	}
	v.seen[mark] = struct{}{}
}

// argon2Parameter returns one parameter; 0 when it is missing, malformed or above its limit.
func argon2Parameter(text, name string, limit uint64) uint64 {
	digits, found := strings.CutPrefix(text, name)
	value, err := strconv.ParseUint(digits, 10, 32)
	if !found || err != nil || value > limit {
		return 0
	}
	return value
}

// compare runs in constant time. The broker never accepts an empty password.
func compare(got, want []byte, password string) PasswordMatch {
	if subtle.ConstantTimeCompare(got, want) == 1 && password != "" {
		return PasswordSame
	}
	return PasswordDiffers
}
