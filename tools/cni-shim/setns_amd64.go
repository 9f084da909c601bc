package main

const sysSetns = 308 // setns(2)
