#include "textflag.h"

// The kernel enters the program here. See early.go.
TEXT ·start(SB), NOSPLIT|NOFRAME, $0
	MOVQ	SP, ·initialStack(SB)
	MOVL	$158, AX // arch_prctl(2)
	MOVL	$0x1002, DI // ARCH_SET_FS
	LEAQ	·noThread+8(SB), SI // Go's word is the one before
	SYSCALL
	ANDQ	$~15, SP
	CALL	·begin(SB)
	MOVQ	·initialStack(SB), SP
	JMP	_rt0_amd64_linux(SB)
