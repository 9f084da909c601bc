package main

import "unsafe"

// Go's runtime needs 1.2 to 1.8 ms of CPU time to start: for threads, a heap and handlers of signals. On a busy node,
// each thread also waits for its turn. A request needs nothing of it. So the linker makes `start` the first function of
// the program (-E main.start), which calls `begin`. If the daemon answers, the process ends there. Otherwise, for an
// answer of its own, Go's runtime starts as usual and calls `main`. A program that is linked without -E does the same,
// slower.

var (
	initialStack unsafe.Pointer // as the kernel left it: see execve(2) and the System V ABI
	noThread     [2]uintptr     // stands in for the thread-local storage, in which compiled Go looks for its goroutine
	result       outcome
	isBegun      bool
)

// names are the variables of the environment, in the order of the specification (CNI, section "Parameters").
var (
	nameCommand   = []byte("CNI_COMMAND=")
	nameContainer = []byte("CNI_CONTAINERID=")
	nameNamespace = []byte("CNI_NETNS=")
	nameIfname    = []byte("CNI_IFNAME=")
	nameArguments = []byte("CNI_ARGS=")
	commands      = [...][]byte{
		[]byte("ADD\x00"), []byte("DEL\x00"), []byte("CHECK\x00"), []byte("GC\x00"), []byte("STATUS\x00"),
	}
)

func start()

// begin makes the request, if the command has one. It returns if Go's runtime is needed.
//
//go:nosplit
func begin() {
	findEnvironment()
	for index := range commands {
		if equal(environment.command, commands[index]) {
			isBegun = true
			result = exchange()
			if result == answered {
				finish()
			}
		}
	}
}

// findEnvironment reads the stack with which the kernel starts a program: the number of arguments, their addresses, a
// zero, and the addresses of the environment's texts up to another zero.
//
//go:nosplit
func findEnvironment() {
	environment.command, environment.container, environment.namespace = zero, zero, zero
	environment.ifname, environment.arguments = zero, zero
	const word = unsafe.Sizeof(initialStack)
	place := unsafe.Add(initialStack, (*(*uintptr)(initialStack)+2)*word)
	for ; *(*unsafe.Pointer)(place) != nil; place = unsafe.Add(place, word) {
		text := *(*unsafe.Pointer)(place)
		take(text, nameCommand, &environment.command)
		take(text, nameContainer, &environment.container)
		take(text, nameNamespace, &environment.namespace)
		take(text, nameIfname, &environment.ifname)
		take(text, nameArguments, &environment.arguments)
	}
}

// take sets `value`, with its zero byte, if the text at this address begins with the name.
//
//go:nosplit
func take(text unsafe.Pointer, name []byte, value *[]byte) {
	for index := range name {
		if *(*byte)(unsafe.Add(text, index)) != name[index] {
			return
		}
	}
	text = unsafe.Add(text, len(name))
	length := 0
	for *(*byte)(unsafe.Add(text, length)) != 0 {
		length++
	}
	*value = unsafe.Slice((*byte)(text), length+1)
}
