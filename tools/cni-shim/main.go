// Command muster-cni is the CNI plugin that the container runtime starts. It passes each request to the daemon in
// Muster's network agent over a Unix socket, prints the answer and exits. It has no dependencies and makes no
// decisions, so that its start costs little and it rarely changes.
//
// The container runtime starts it in the node's own mount and network namespace. So this program opens the pod's
// network namespace and makes a netlink socket in it, and passes both to the daemon. The daemon needs neither the
// mounts of these namespaces nor the capability to enter them.
//
// It answers by itself in three cases: VERSION; a request that cannot be read; and no answer from the daemon. Then ADD,
// DEL, CHECK and GC get code 11 (try again later), and STATUS gets code 50 (not available). One deadline is for all:
// a container runtime that never ends stdin, and a daemon that is stopped or answers byte by byte.
//
// exchange.go makes the request, early.go does so before Go's runtime starts, and this file writes the answers.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

const (
	codeEnvironment  = 4 // CNI specification, section "Error"
	codeIO           = 5
	codeDecoding     = 6
	codeTryAgain     = 11
	codeNotAvailable = 50
)

// settings are what this program reads of the plugin's configuration.
type settings struct {
	CNIVersion string `json:"cniVersion"`
	Socket     string `json:"socket"`
}

// failure is an error of CNI.
type failure struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Message    string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func main() {
	runtime.LockOSThread() // entering a network namespace changes one thread
	command := os.Getenv("CNI_COMMAND")
	if command == "" {
		fail(settings{}, codeEnvironment, "CNI_COMMAND is not set", "this program is started by a container runtime")
	}
	if command == "VERSION" {
		result = readConfig()
	} else if !isBegun {
		copyEnvironment()
		result = exchange()
	}
	switch result {
	case unread:
		fail(settings{}, codeIO, "the configuration cannot be read from stdin", failed.Error())
	case tooLong:
		fail(settings{}, codeDecoding, fmt.Sprintf("the configuration has more than %d bytes", configBytesMax), "")
	case unending:
		unanswered(settings{}, command, "")
	}
	given := config[:configBytes]
	var known settings
	if err := json.Unmarshal(given, &known); err != nil && (command != "VERSION" || len(bytes.TrimSpace(given)) > 0) {
		fail(settings{}, codeDecoding, "the configuration is not valid", err.Error())
	}
	if command == "VERSION" {
		version(known)
	}
	if known.Socket == "" {
		known.Socket = string(defaultSocket)
	}
	if result == unclear {
		result = ask([]byte(known.Socket))
	}
	if result == answered {
		finish()
	}
	unanswered(known, command, known.Socket)
}

// copyEnvironment takes the environment from Go's runtime.
func copyEnvironment() {
	text := func(name string) []byte { return append([]byte(os.Getenv(name)), 0) }
	environment.command, environment.container = text("CNI_COMMAND"), text("CNI_CONTAINERID")
	environment.namespace, environment.ifname = text("CNI_NETNS"), text("CNI_IFNAME")
	environment.arguments = text("CNI_ARGS")
}

func version(known settings) {
	if known.CNIVersion == "" {
		known.CNIVersion = "1.1.0"
	}
	quoted, _ := json.Marshal(known.CNIVersion)
	exit(0, fmt.Sprintf("{\"cniVersion\":%s,\"supportedVersions\":[\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n", quoted))
}

// unanswered reports that there is no answer from the daemon.
func unanswered(known settings, command, socket string) {
	code := codeTryAgain
	if command == "STATUS" {
		code = codeNotAvailable
	}
	details := fmt.Sprintf("there is no answer after %d s", deadlineS)
	switch result {
	case refused:
		details = socket + ": " + failed.Error()
	case closed:
		details = socket + ": the connection was closed without an answer"
	}
	fail(known, code, "the network agent of this node does not answer; the runtime tries again", details)
}

func fail(known settings, code int, message, details string) {
	if known.CNIVersion == "" {
		known.CNIVersion = "1.1.0"
	}
	text, _ := json.Marshal(failure{known.CNIVersion, code, message, details})
	exit(1, string(text)+"\n")
}

func exit(code int, output string) {
	os.Stdout.WriteString(output)
	os.Exit(code)
}
