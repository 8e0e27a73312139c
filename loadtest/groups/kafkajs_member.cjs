// A member of a group with kafkajs: `node kafkajs_member.cjs BOOTSTRAP GROUP TOPIC EVENTS NAME`.
// What was processed is in EVENTS (the lines of loadtest.groups.events) before it is committed; SIGTERM leaves.
// KAFKAJS is the folder that `npm install kafkajs` was run in.
'use strict'
const fs = require('fs')
const path = require('path')
const { AssignerProtocol, Kafka, PartitionAssigners, logLevel } = require(path.join(process.env.KAFKAJS, 'node_modules', 'kafkajs'))

const [bootstrap, groupId, topic, file, clientId] = process.argv.slice(2)
const out = fs.openSync(file, 'a')
const write = (row) => fs.writeSync(out, JSON.stringify(row) + '\n')

// The assignor that all clients of a mixed group have in common; kafkajs brings round robin only.
const range = ({ cluster }) => ({
  name: 'range',
  version: 0,
  async assign({ members, topics }) {
    const ids = members.map(({ memberId }) => memberId).sort()
    const assigned = Object.fromEntries(ids.map((id) => [id, {}]))
    for (const name of topics) {
      const partitions = cluster.findTopicPartitionMetadata(name).map(({ partitionId }) => partitionId).sort((a, b) => a - b)
      const each = Math.floor(partitions.length / ids.length)
      const more = partitions.length % ids.length
      ids.forEach((id, place) => {
        const start = place * each + Math.min(place, more)
        assigned[id][name] = partitions.slice(start, start + each + (place < more ? 1 : 0))
      })
    }
    return ids.map((memberId) => ({
      memberId,
      memberAssignment: AssignerProtocol.MemberAssignment.encode({
        version: 0,
        assignment: assigned[memberId],
        userData: Buffer.alloc(0),
      }),
    }))
  },
  protocol({ topics }) {
    const metadata = AssignerProtocol.MemberMetadata.encode({ version: 0, topics, userData: Buffer.alloc(0) })
    return { name: 'range', metadata }
  },
})

const kafka = new Kafka({ clientId, brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry: { retries: 50 } })
// kafkajs looks for the coordinator when it joins, not when a commit fails: until its retries are used up it goes on to
// fetch and to process, and commits nothing. With few retries it joins anew soon after the coordinator has died.
const consumer = kafka.consumer({
  groupId,
  sessionTimeout: 6000,
  heartbeatInterval: 500,
  retry: { initialRetryTime: 100, retries: 1 },
  maxWaitTimeInMs: 100,
  partitionAssigners: [PartitionAssigners.roundRobin, range],
})
let member = ''

consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  member = payload.memberId
  write({ e: 'assigned', t: Date.now(), member, partitions: payload.memberAssignment[topic] || [] })
})

async function main() {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, commitOffsetsIfNecessary, isStale, isRunning }) => {
      if (isStale() || !isRunning() || !batch.messages.length) return
      const offsets = batch.messages.map((message) => Number(message.offset))
      write({ e: 'read', t: Date.now(), member, partition: batch.partition, offsets })
      resolveOffset(batch.lastOffset())
      await commitOffsetsIfNecessary({
        topics: [{ topic, partitions: [{ partition: batch.partition, offset: String(offsets[offsets.length - 1] + 1) }] }],
      })
      await heartbeat()
    },
  })
}

process.on('SIGTERM', async () => {
  await consumer.disconnect()
  process.exit(0)
})
main().catch((error) => {
  console.error(error)
  process.exit(1)
})
