// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package envtest

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
)

// volumeStore is a valid destination, and backupTemplate a valid spec of a Backup.
const (
	volumeStore    = `{volume: {claimName: backups}}`
	backupTemplate = `{clusterRef: {name: c}, destination: ` + volumeStore + `}`
)

// inBucket returns the spec of a Backup with further fields of its bucket.
func inBucket(fields string) string {
	return `{clusterRef: {name: c}, destination: {s3: {credentialsSecretRef: {name: s}, ` + fields + `}}}`
}

// onVolume returns the spec of a Backup or Restore with further fields.
func onVolume(fields string) string {
	return `{clusterRef: {name: c}, destination: ` + volumeStore + `, ` + fields + `}`
}

var _ = DescribeTable("a nonsense Backup is refused by the API server", refuses("Backup"),
	Entry("nothing", `spec.clusterRef: Required value`, `{}`),
	Entry("no destination", `spec.destination: Required value`, `{clusterRef: {name: c}}`),
	Entry("an empty destination", `spec.destination: Invalid value: set exactly one of s3 and volume`, `{clusterRef: {name: c}, destination: {}}`),
	Entry("two destinations", `set exactly one of s3 and volume`, `{clusterRef: {name: c}, destination: {s3: {bucket: abc, credentialsSecretRef: {name: s}}, volume: {claimName: v}}}`),
	Entry("a cluster in another namespace", `clusterRef.namespace: leave it out and create this object in the namespace of its BrokerCluster`, `{clusterRef: {name: c, namespace: other}, destination: `+volumeStore+`}`),
	Entry("an external broker", `clusterRef.connectionSecret: the operator makes backups of BrokerClusters only`, `{clusterRef: {connectionSecret: {name: s}}, destination: `+volumeStore+`}`),
	Entry("a bucket in capitals", `bucket must have 3 to 63 lower case letters`, inBucket(`bucket: Backups`)),
	Entry("a bucket with a path", `put the path into prefix`, inBucket(`bucket: backups/shop`)),
	Entry("a bucket that is a URL", `bucket must have 3 to 63 lower case letters`, inBucket(`bucket: "s3://backups"`)),
	Entry("a bucket that is too short", `bucket must have 3 to 63 lower case letters`, inBucket(`bucket: ab`)),
	Entry("a bucket with two dots", `bucket must have 3 to 63 lower case letters`, inBucket(`bucket: a..b`)),
	Entry("no credentials", `spec.destination.s3.credentialsSecretRef: Required value`, `{clusterRef: {name: c}, destination: {s3: {bucket: abc}}}`),
	Entry("a prefix with a slash at its start", `prefix must be parts of letters`, inBucket(`bucket: abc, prefix: /shop`)),
	Entry("an endpoint without a scheme", `endpoint must be a URL such as https://s3.example.com`, inBucket(`bucket: abc, endpoint: s3.example.com`)),
	Entry("an endpoint with a path", `without a path; put the bucket into bucket`, inBucket(`bucket: abc, endpoint: "https://s3.example.com/abc"`)),
	Entry("an endpoint without TLS", `use https://, or set allowHTTP: true`, inBucket(`bucket: abc, endpoint: "http://s3.example.com"`)),
	Entry("a region with blanks", `region must be lower case letters, digits and dashes`, inBucket(`bucket: abc, region: "EU Central"`)),
	Entry("a claim without a name", `spec.destination.volume.claimName`, `{clusterRef: {name: c}, destination: {volume: {claimName: ""}}}`),
	Entry("a path that leads out of the volume", `subPath must be a relative path without . and ..`, `{clusterRef: {name: c}, destination: {volume: {claimName: v, subPath: a/../..}}}`),
	Entry("an absolute path", `subPath must be a relative path`, `{clusterRef: {name: c}, destination: {volume: {claimName: v, subPath: /a}}}`),
	Entry("queues without virtual hosts", `scope.queues needs scope.vhosts: name the virtual hosts of the queues`, onVolume(`scope: {queues: [orders]}`)),
	Entry("queues without messages", `scope.queues selects messages, which scope.definitionsOnly leaves out`, onVolume(`scope: {vhosts: [/], queues: [orders], definitionsOnly: true}`)),
	Entry("no virtual hosts", `spec.scope.vhosts`, onVolume(`scope: {vhosts: []}`)),
	Entry("a virtual host twice", `Duplicate value`, onVolume(`scope: {vhosts: [a, a]}`)),
	Entry("a virtual host with control characters", `must not contain control characters`, onVolume(`scope: {vhosts: ["a\u0001"]}`)),
	Entry("an unknown deletion policy", `spec.deletionPolicy: Unsupported value`, onVolume(`deletionPolicy: Recycle`)),
	Entry("a timeout of nothing", `timeout must be from 1s to 720h`, onVolume(`timeout: 0s`)),
	Entry("a timeout in words", `spec.timeout`, onVolume(`timeout: long`)),
	Entry("a field of CloudNativePG", `unknown field "spec.method"`, onVolume(`method: barmanObjectStore`)),
)

var _ = DescribeTable("a nonsense ScheduledBackup is refused by the API server", refuses("ScheduledBackup"),
	Entry("nothing", `spec.schedule: Required value`, `{}`),
	Entry("no template", `spec.template: Required value`, `{schedule: "@daily"}`),
	Entry("words", `schedule must have five fields separated by single blanks`, `{schedule: every night, template: `+backupTemplate+`}`),
	Entry("four fields", `schedule must have five fields`, `{schedule: "0 2 * *", template: `+backupTemplate+`}`),
	Entry("six fields", `schedule must have five fields`, `{schedule: "0 0 2 * * *", template: `+backupTemplate+`}`),
	Entry("two blanks", `separated by single blanks`, `{schedule: "0  2 * * *", template: `+backupTemplate+`}`),
	Entry("an unknown descriptor", `or be @hourly, @daily, @weekly, @monthly or @yearly`, `{schedule: "@nightly", template: `+backupTemplate+`}`),
	Entry("an interval", `or be @hourly`, `{schedule: "@every 5m", template: `+backupTemplate+`}`),
	Entry("a time zone in the schedule", `put the time zone into timeZone`, `{schedule: "TZ=UTC 2 * * *", template: `+backupTemplate+`}`),
	Entry("a minute that does not exist", `the minute must be from 0 to 59`, `{schedule: "60 2 * * *", template: `+backupTemplate+`}`),
	Entry("an hour that does not exist", `and the hour from 0 to 23`, `{schedule: "0 24 * * *", template: `+backupTemplate+`}`),
	Entry("a step of nothing", `steps (*/5)`, `{schedule: "*/0 2 * * *", template: `+backupTemplate+`}`),
	Entry("a day that does not exist", `the day of the month must be from 1 to 31`, `{schedule: "0 2 32 * *", template: `+backupTemplate+`}`),
	Entry("a month that does not exist", `the month from 1 to 12 or jan to dec`, `{schedule: "0 2 * 13 *", template: `+backupTemplate+`}`),
	Entry("a day of the week that does not exist", `the day of the week from 0 (Sunday) to 6`, `{schedule: "0 2 * * 7", template: `+backupTemplate+`}`),
	Entry("an unknown time zone", `timeZone must be a name of the IANA database`, `{schedule: "@daily", timeZone: Europe/Atlantis, template: `+backupTemplate+`}`),
	Entry("the local time zone", `timeZone must be a name of the IANA database, such as Europe/Berlin`, `{schedule: "@daily", timeZone: Local, template: `+backupTemplate+`}`),
	Entry("an offset", `timeZone must be a name of the IANA database`, `{schedule: "@daily", timeZone: "+02:00", template: `+backupTemplate+`}`),
	Entry("nothing to keep", `spec.keep`, `{schedule: "@daily", keep: 0, template: `+backupTemplate+`}`),
	Entry("a negative number to keep", `spec.keep`, `{schedule: "@daily", keep: -1, template: `+backupTemplate+`}`),
	Entry("suspend in words", `spec.suspend`, `{schedule: "@daily", suspend: "yes", template: `+backupTemplate+`}`),
	Entry("a template of two stores", `set exactly one of s3 and volume`, `{schedule: "@daily", template: {clusterRef: {name: c}, destination: {}}}`),
	Entry("a template of another namespace", `clusterRef.namespace: leave it out`, `{schedule: "@daily", template: {clusterRef: {name: c, namespace: o}, destination: `+volumeStore+`}}`),
	Entry("a field of CronJobs", `unknown field "spec.concurrencyPolicy"`, `{schedule: "@daily", concurrencyPolicy: Forbid, template: `+backupTemplate+`}`),
)

var _ = DescribeTable("a nonsense Restore is refused by the API server", refuses("Restore"),
	Entry("nothing", `spec.clusterRef: Required value`, `{}`),
	Entry("no backup", `set exactly one of backupRef and source`, `{clusterRef: {name: c}}`),
	Entry("two backups", `set exactly one of backupRef and source`, `{clusterRef: {name: c}, backupRef: {name: b}, source: {name: b, destination: `+volumeStore+`}}`),
	Entry("a backup without a name", `spec.backupRef.name`, `{clusterRef: {name: c}, backupRef: {name: ""}}`),
	Entry("a backup of another type", `spec.backupRef`, `{clusterRef: {name: c}, backupRef: b}`),
	Entry("a source without a name", `spec.source.name: Required value`, `{clusterRef: {name: c}, source: {destination: `+volumeStore+`}}`),
	Entry("a source with a path", `source.name must have 1 to 128 letters`, `{clusterRef: {name: c}, source: {name: ../b, destination: `+volumeStore+`}}`),
	Entry("a source that begins with a dot", `and not begin with a dot`, `{clusterRef: {name: c}, source: {name: .b, destination: `+volumeStore+`}}`),
	Entry("a source that is too long", `spec.source.name`, `{clusterRef: {name: c}, source: {name: `+strings.Repeat("n", 129)+`, destination: `+volumeStore+`}}`),
	Entry("a source without a store", `spec.source.destination: Required value`, `{clusterRef: {name: c}, source: {name: b}}`),
	Entry("a source in no store", `set exactly one of s3 and volume`, `{clusterRef: {name: c}, source: {name: b, destination: {}}}`),
	Entry("a cluster in another namespace", `clusterRef.namespace: leave it out`, `{clusterRef: {name: c, namespace: o}, backupRef: {name: b}}`),
	Entry("an external broker", `clusterRef.connectionSecret: the operator restores into BrokerClusters only`, `{clusterRef: {connectionSecret: {name: s}}, backupRef: {name: b}}`),
	Entry("queues without a virtual host", `scope.queues needs scope.vhost: name the virtual host of the queues`, `{clusterRef: {name: c}, backupRef: {name: b}, scope: {queues: [orders]}}`),
	Entry("virtual hosts in the plural", `unknown field "spec.scope.vhosts"`, `{clusterRef: {name: c}, backupRef: {name: b}, scope: {vhosts: [a]}}`),
	Entry("neither definitions nor messages", `scope.definitionsOnly and scope.messagesOnly exclude each other`, `{clusterRef: {name: c}, backupRef: {name: b}, scope: {definitionsOnly: true, messagesOnly: true}}`),
	Entry("another virtual host for all", `asVhost needs scope.vhost`, `{clusterRef: {name: c}, backupRef: {name: b}, asVhost: copy}`),
	Entry("another virtual host without one", `asVhost needs scope.vhost`, `{clusterRef: {name: c}, backupRef: {name: b}, asVhost: copy, scope: {definitionsOnly: true}}`),
	Entry("an unknown conflict rule", `spec.conflict: Unsupported value`, `{clusterRef: {name: c}, backupRef: {name: b}, conflict: Replace}`),
	Entry("a conflict rule in lower case", `spec.conflict: Unsupported value`, `{clusterRef: {name: c}, backupRef: {name: b}, conflict: skip}`),
	Entry("a timeout of nothing", `timeout must be from 1s to 720h`, `{clusterRef: {name: c}, backupRef: {name: b}, timeout: 0s}`),
	Entry("a field of Velero", `unknown field "spec.backupName"`, `{clusterRef: {name: c}, backupName: b}`),
)

var _ = DescribeTable("a nonsense bootstrap of a BrokerCluster is refused by the API server", refuses("BrokerCluster"),
	Entry("a backup and definitions", `bootstrap.definitionsSecretRef and bootstrap.backupRef exclude each other: a backup has definitions`, `{bootstrap: {backupRef: {name: b}, definitionsSecretRef: {name: s}}}`),
	Entry("a backup without a name", `spec.bootstrap.backupRef.name`, `{bootstrap: {backupRef: {name: ""}}}`),
)
