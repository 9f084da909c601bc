package main

const sysSetns = 268 // setns(2)
