#!/usr/bin/env bash
# A small build: what it does is up to the policy, command by command.
set -u

echo '--- a repository'
git init --quiet --initial-branch=main
git add hello.c
git commit --quiet --message 'Hello'
git log --oneline

echo '--- a compiler and an archive'
gcc -O2 -o hello hello.c
./hello
tar -czf hello-1.0.tar.gz hello.c

echo '--- out of the sandbox, by itself: the sandbox says no'
cp hello-1.0.tar.gz ../outbox/ || echo "cp ended with $?"

echo '--- out of the sandbox, by a command that the policy escalates'
install -m 644 hello-1.0.tar.gz ../outbox/ && echo 'released'

echo '--- a command that the policy denies'
git push origin main || echo "git push ended with $?, and the script goes on"

echo '--- done'
