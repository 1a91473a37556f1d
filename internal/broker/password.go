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

// PasswordMatch is the answer to whether a user's password is a given one.
type PasswordMatch int

// Answers of User.CheckPassword.
const (
	// PasswordUnknown: the broker does not show the hash, or its algorithm is not known here.
	PasswordUnknown PasswordMatch = iota
	PasswordSame
	PasswordDiffers
)

// saltBytes is the length of the salt that RabbitMQ's password hashes begin with.
const saltBytes = 4

// Limits of the work that an argon2id hash may ask for. The broker has the same and refuses a hash
// that exceeds them.
const (
	maxArgon2Text   = 512
	maxArgon2Memory = 64 * 1024 // KiB
	maxArgon2Passes = 16
	maxArgon2Lanes  = 4
)

// CheckPassword compares the user's hash with a password. The broker makes argon2id hashes, and keeps
// the RabbitMQ hashes of imported users. All are base64 on the HTTP API.
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

// checkSalted compares with RabbitMQ's form: a salt of four bytes, then the digest of salt and password.
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

// maxVerified bounds how many verified passwords are remembered.
const maxVerified = 16384

// verified remembers which password an argon2id hash was found to have. A comparison takes 20 ms and 7 MiB,
// and every resync compares every user.
var verified = newVerifiedPasswords()

type verifiedPasswords struct {
	key  [sha256.Size]byte
	mu   sync.Mutex
	seen map[[sha256.Size]byte]struct{}
}

func newVerifiedPasswords() *verifiedPasswords {
	v := &verifiedPasswords{seen: map[[sha256.Size]byte]struct{}{}}
	// It never fails; a random key keeps the marks of no use outside this process.
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

// argon2Parameter reads one parameter; 0 when it is missing, malformed or above its limit.
func argon2Parameter(text, name string, limit uint64) uint64 {
	digits, found := strings.CutPrefix(text, name)
	value, err := strconv.ParseUint(digits, 10, 32)
	if !found || err != nil || value > limit {
		return 0
	}
	return value
}

// compare takes the same time wherever the digests differ. The broker never accepts an empty password.
func compare(got, want []byte, password string) PasswordMatch {
	if subtle.ConstantTimeCompare(got, want) == 1 && password != "" {
		return PasswordSame
	}
	return PasswordDiffers
}
